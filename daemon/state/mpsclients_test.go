package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A count of one GPU leaves those of the others, and matters when it differs and the clients get scarce.
func TestSetMPSClientsOn(t *testing.T) {
	t.Parallel()
	x := NewState(nil, false)
	x.SetMPSClients(MPSClients{"GPU-1": {"a": 1}})
	for i, c := range []struct {
		count   map[string]int
		matters bool
	}{
		{map[string]int{"b": 10}, false},
		{map[string]int{"b": 30}, true},
		{map[string]int{"b": 30}, false},
		{map[string]int{"b": 20, "c": 10}, true},
		{map[string]int{"b": 1}, true},
		{map[string]int{}, false},
	} {
		if got := x.SetMPSClientsOn("GPU-2", c.count, 48); got != c.matters {
			t.Errorf("count %d: it matters: %v", i, got)
		}
		if d := cmp.Diff(MPSClients{"GPU-1": {"a": 1}, "GPU-2": c.count}, x.MPSClients()); d != "" {
			t.Errorf("count %d (-want +got):\n%s", i, d)
		}
	}
}
