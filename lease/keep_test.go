package lease

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// A caller decides how long a command is and how often they call: neither is kept without a limit, nor written.
func TestAUserCannotFillTheTable(t *testing.T) {
	tab, _ := table(t, View{Generation: 1, GPUs: []GPUView{device(0, api.ModeTimeslice)}, Grants: []Grant{timeslice("red", "part", 1, 0)}})
	command := []string{"python", strings.Repeat("x", 1<<20)}
	submit := func(uid int, admin bool) error {
		_, err := tab.Submit(Request{Tenant: "red", Member: []string{"red"}, User: "alice", UID: uid, Admin: admin, Command: command})
		return err
	}
	for i := range maxPerUser {
		if err := submit(1001, false); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	var e *api.Error
	if err := submit(1001, false); !errors.As(err, &e) || e.Kind != api.KindUnavailable || e.Hint == "" ||
		!strings.Contains(e.Message, "alice has 128 leases") {
		t.Errorf("one more returned %v", err)
	}
	for _, other := range []struct {
		uid   int
		admin bool
	}{{1002, false}, {1001, true}} {
		if err := submit(other.uid, other.admin); err != nil {
			t.Errorf("%+v: %v", other, err)
		}
	}
	b, err := tab.State()
	if most := (maxPerUser + 2) * (MaxKept + 1<<10); err != nil || len(b) > most {
		t.Errorf("%d bytes are written, want at most %d: %v", len(b), most, err)
	}
	for _, l := range tab.List() {
		if len(strings.Join(l.Command, " ")) > MaxKept || l.Command[0] != "python" ||
			!strings.HasSuffix(l.Command[1], "… (cut, 1048584 bytes)") {
			t.Fatalf("the command is %.100q", l.Command)
		}
	}
}
