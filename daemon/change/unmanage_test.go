package change

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/internal/store"
)

// unreadFilters are login filters that cannot be read.
type unreadFilters struct{}

func (unreadFilters) Filters(context.Context) ([]device.LoginFilterState, error) {
	return nil, errors.New("permission denied")
}

// A node whose login filters cannot be read is not unmanaged: they may be active.
func TestUnmanageDoesNotCountWhatItCannotRead(t *testing.T) {
	w := newFixture(t)
	w.apply("version: v1\nnode: {enforce: on}\ntenants: [{name: red, grants: []}]\n")
	w.Observer.LoginFilters = unreadFilters{}
	for i := range 2 { // The second time nothing is left but what cannot be read.
		p, err := w.unmanaging.Propose(w.Context(), store.UnmanagedRestrictions, "root")
		if err != nil {
			t.Fatal(err)
		}
		if p.Plan.Complete() || !strings.Contains(p.Plan.Unreachable[0].Reason, "permission denied") {
			t.Errorf("the plan is %+v", p.Plan)
		}
		op := w.carriedOut(p)
		if i == 0 &&
			(op == nil || op.State != "degraded" || !strings.Contains(op.Error.Message, "permission denied") || op.Error.Hint == "") {
			t.Errorf("the change ended as %+v", op)
		}
		if !w.State.Stored().ActiveRestrictions {
			t.Error("no restriction is recorded as active")
		}
		if _, _, err := w.unmanaging.RemainingSteps(p.Node); err == nil {
			t.Error("nothing is said to be left")
		}
	}
	w.Observer.LoginFilters = nil
	p, err := w.unmanaging.Propose(w.Context(), store.UnmanagedRestrictions, "root")
	if err != nil {
		t.Fatal(err)
	}
	if w.carriedOut(p); !p.Plan.Complete() || w.State.Stored().ActiveRestrictions {
		t.Errorf("the node is not unmanaged: %+v", p.Plan)
	}
}
