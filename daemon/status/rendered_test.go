package status

import (
	"testing"

	"github.com/gpushare/gpushare/api"
)

// A client that has waited for a change reads a status that shows it, also while another request renders the status.
func TestStatusAfterAChange(t *testing.T) {
	var c renderCache
	var version uint64
	generation := 1
	render := func() *api.Status { return &api.Status{Node: api.NodeStatus{Generation: uint64(generation)}} }
	current := func() uint64 { return version }
	if got := c.current(current, render).status.Node.Generation; got != 1 {
		t.Fatalf("the first status has generation %d", got)
	}
	generation, version = 2, 1
	p := c.current(current, func() *api.Status {
		if old := c.upToDate(version); old != nil {
			t.Errorf("while the status is rendered after a change, another request gets that of generation %d", old.status.Node.Generation)
		}
		s := render()
		generation, version = 3, 2 // A change after it was read.
		return s
	})
	if got := p.status.Node.Generation; got != 2 {
		t.Errorf("the status has generation %d, want 2", got)
	}
	if got := c.current(current, render); got.status.Node.Generation != 3 || c.upToDate(2) != got {
		t.Errorf("after a change during the rendering the status has generation %d, want 3", got.status.Node.Generation)
	}
}
