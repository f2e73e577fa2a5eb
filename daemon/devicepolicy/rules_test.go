package devicepolicy

import (
	"testing"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/isolation"
)

// A GPU that misses one reading keeps its last reading in the device rules. What slices allow on
// a GPU that was never read is kept.
func TestUnresponsiveGPUKeepsItsRules(t *testing.T) {
	st := storetest.Open(t)
	d := &Policy{State: state.NewState(st, false), Hosts: &isolation.HostCache{Root: t.TempDir()}}
	known := gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-a", Minor: 3}, Memory: gpu.Memory{Total: 1 << 30}}
	node := &observe.Node{GPUs: []observe.GPU{{Snapshot: known, Err: gpu.ErrTimeout}}}
	hw, err := d.hardware(node, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(hw.GPUs) != 1 || hw.GPUs[0].Identity.Minor != 3 {
		t.Errorf("the rules are made from %+v", hw.GPUs)
	}
	if len(d.NeverRead(node)) > 0 {
		t.Error("a GPU with a last reading counts as never read")
	}
	node.GPUs = append(node.GPUs, observe.GPU{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-b"}}, Err: gpu.ErrTimeout})
	if !d.NeverRead(node)["GPU-b"] {
		t.Error("a GPU without any reading does not count as never read")
	}

	// After the driver was loaded again no lease has anything on it.
	node.Epoch = observe.Epoch{Boot: "b", Driver: "2"}
	for driver, want := range map[string]bool{"2": true, "1": false} {
		err := d.State.Store.Update(func(s *store.State) error {
			s.Achieved = map[gpu.UUID]store.Achieved{"GPU-b": {Epoch: store.Epoch{Boot: "b", Driver: driver}}}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(d.NeverRead(node)) > 0; got != want {
			t.Errorf("recorded under driver %s it counts as never read: %v", driver, got)
		}
	}
}
