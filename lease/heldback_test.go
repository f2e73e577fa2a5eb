package lease

import (
	"testing"

	"github.com/gpushare/gpushare/api"
)

// A tenant that is held back on a GPU gets no new lease there, and another one does. Its request waits, or is refused with the reason.
func TestHeldBackTenantsGetNoLease(t *testing.T) {
	const why = "its MPS takes no lease of vision after 3 fatal faults"
	held := func(reasons map[string]string) View {
		v := clientsOn(48, nil)
		v.GPUs[0].HeldBack = reasons
		return v
	}
	tab, _ := table(t, held(map[string]string{"vision": why}))
	_, err := submit(tab, "vision", "a")
	refused(t, err, api.KindUnavailable, "GPU 0: "+why)
	if _, err := submit(tab, "speech", "b"); err != nil {
		t.Error(err)
	}
	waiting, err := as(tab, 1002, "bob", "vision", "a", true)
	if err != nil {
		t.Fatal(err)
	}
	if tab.Update(held(nil)); !isPlaced(tab, waiting) {
		t.Error("it still waits although it is not held back any more")
	}
}
