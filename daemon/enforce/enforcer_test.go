package enforce

import (
	"fmt"
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// The leases of a GPU are copied once, however many there are.
func TestLeasesByGPUAreCopiedOnce(t *testing.T) {
	t.Parallel()
	var live []lease.Lease
	for i := range 23 {
		ids := []gpu.UUID{gpu.UUID(fmt.Sprintf("GPU-%d", i%3))}
		if i%5 == 0 {
			ids = append(ids, "GPU-more")
		}
		live = append(live, lease.Lease{ID: fmt.Sprintf("l-%d", i), Place: lease.Place{GPUs: ids}})
	}
	by := leasesByGPU(live)
	for id, want := range map[gpu.UUID]int{"GPU-0": 8, "GPU-1": 8, "GPU-2": 7, "GPU-more": 5} {
		if list := by[id]; len(list) != want || cap(list) != want {
			t.Errorf("%s has %d leases in room for %d; want %d", id, len(list), cap(list), want)
		}
	}
	if l := by["GPU-1"]; len(by) != 4 || l[0].ID != "l-1" || l[7].ID != "l-22" {
		t.Errorf("%d GPUs; of GPU-1 the first is %s", len(by), l[0].ID)
	}
}
