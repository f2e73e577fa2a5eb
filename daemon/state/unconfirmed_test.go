package state

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// What a failed change may have created is recorded as far as it is not known that it did not; an instance of others never is.
func TestWhatAFailedChangeMayHaveCreated(t *testing.T) {
	at := func(profile, start, size uint32) step.Step {
		args := step.Must(mig.InstanceArgs{Placed: mig.Placed{ProfileID: profile, Placement: gpu.Placement{Start: start, Size: size}}})
		return step.Step{Kind: mig.KindCreate, GPU: "GPU-1", Args: args, Undo: args}
	}
	three := observetest.Instance(9, 0)
	steps := []step.Step{at(three.ProfileID, three.Placement.Start, three.Placement.Size), at(19, 6, 1)}
	completes := at(19, 5, 1)
	completes.Undo = nil
	other := at(19, 4, 1)
	other.GPU = "GPU-2"
	steps = append(steps, completes, other)
	device := func(in ...gpu.Instance) *observe.GPU {
		g := observetest.Device(true, in...)
		return &g
	}
	boot := store.Epoch{Boot: "b", Driver: "d"}
	for _, c := range []struct {
		name    string
		g       *observe.GPU
		unknown bool
		want    int
	}{
		{"not read back", nil, false, 2},
		{"read back, and a step did not answer", device(), true, 2},
		{"read back, and one is there", device(three), false, 1},
		{"read back, and one of another profile is there", device(observetest.Instance(14, 0)), false, 0},
		{"read back, and nothing is there", device(), false, 0},
	} {
		s := &store.State{}
		for range 2 { // The second time it is recorded already.
			NoteUnconfirmed(s, "GPU-1", c.g, c.unknown, boot, steps, time.Unix(1, 0))
		}
		if n := len(s.Unconfirmed["GPU-1"].Created); n != c.want || len(s.Unconfirmed["GPU-2"].Created) != 0 {
			t.Errorf("%s: %+v, want %d", c.name, s.Unconfirmed, c.want)
		}
		a, ok := Owned(s, "GPU-1")
		if ok != (c.want > 0) || c.want > 0 && !IsManaged(&a, &three) {
			t.Errorf("%s: managed are %+v", c.name, a.Layout)
		}
		node := &observe.Node{Epoch: observe.Epoch{Boot: "b", Driver: "d"}}
		if VoidUnconfirmed(s, node, false) {
			t.Errorf("%s: it is void in its own boot", c.name)
		}
		node.Epoch.Boot = "another"
		if VoidUnconfirmed(s, node, true) != (c.want > 0) || VoidUnconfirmed(s, node, false) != (c.want > 0) || len(s.Unconfirmed) != 0 {
			t.Errorf("%s: it is not void after a boot: %+v", c.name, s.Unconfirmed)
		}
	}
}
