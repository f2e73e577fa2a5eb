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
		a, ok := Owned(s, "GPU-1", nil)
		if ok != (c.want > 0) || c.want > 0 && !IsManaged(&a, &three) {
			t.Errorf("%s: managed are %+v", c.name, a.Layout)
		}
		node := &observe.Node{Epoch: observe.Epoch{Boot: "b", Driver: "d"}}
		if VoidUnconfirmed(s, node, false) {
			t.Errorf("%s: it is void in its own boot", c.name)
		}
		if a, _ := Owned(s, "GPU-1", node); c.want > 0 && !IsManaged(&a, &three) {
			t.Errorf("%s: in its own boot managed are %+v", c.name, a.Layout)
		}
		node.Epoch.Boot = "another"
		if a, _ := Owned(s, "GPU-1", node); len(a.Layout) != 0 {
			t.Errorf("%s: after a boot managed are %+v", c.name, a.Layout)
		}
		if VoidUnconfirmed(s, node, true) != (c.want > 0) || VoidUnconfirmed(s, node, false) != (c.want > 0) || len(s.Unconfirmed) != 0 {
			t.Errorf("%s: it is not void after a boot: %+v", c.name, s.Unconfirmed)
		}
	}
}

// What gpushare managed and the undo of a change may create again stays its own. What it did not manage, and what is there or known not
// to come, is not recorded.
func TestWhatAnUndoMayCreateAgain(t *testing.T) {
	three, small := observetest.Instance(9, 0), observetest.Instance(19, 6)
	var steps []step.Step
	for _, in := range []gpu.Instance{three, small} {
		args := step.Must(mig.InstanceArgs{Placed: mig.Placed{ProfileID: in.ProfileID, Placement: in.Placement}})
		steps = append(steps, step.Step{Kind: mig.KindDestroy, GPU: "GPU-1", Args: args, Undo: args})
	}
	device := func(in ...gpu.Instance) *observe.GPU {
		g := observetest.Device(true, in...)
		return &g
	}
	for _, c := range []struct {
		name    string
		g       *observe.GPU
		unknown bool
		boot    string
		want    bool
	}{
		{"not read back", nil, false, "b", true},
		{"the undo did not answer", device(), true, "b", true},
		{"the undo did not answer, and it is there", device(three), true, "b", false},
		{"the undo failed", device(), false, "b", false},
		{"it was managed in an earlier boot", device(), true, "a", false},
	} {
		s := &store.State{Achieved: map[gpu.UUID]store.Achieved{"GPU-1": {Epoch: store.Epoch{Boot: c.boot}, Layout: []gpu.Instance{three}}}}
		NoteUnconfirmed(s, "GPU-1", c.g, c.unknown, store.Epoch{Boot: "b"}, steps, time.Unix(1, 0))
		created := s.Unconfirmed["GPU-1"].Created
		if got := len(created) == 1 && created[0].Is(three); got != c.want || len(created) > 1 {
			t.Errorf("%s: %+v", c.name, created)
		}
	}
}

// On a GPU that gpushare does not manage, what is not there when it answers is not gpushare's when it appears.
func TestForgetAbsent(t *testing.T) {
	three, small := observetest.Instance(9, 0), observetest.Instance(19, 6)
	created := func(in gpu.Instance) store.CreatedInstance {
		return store.CreatedInstance{ProfileID: in.ProfileID, Placement: in.Placement}
	}
	s := &store.State{
		Unconfirmed: map[gpu.UUID]store.Unconfirmed{"GPU-1": {Created: []store.CreatedInstance{created(three), created(small)}}},
	}
	g := observetest.Device(true, small)
	if !ForgetAbsent(s, "GPU-1", &g) || ForgetAbsent(s, "GPU-1", &g) {
		t.Error("the change of the record is not reported once")
	}
	if left := s.Unconfirmed["GPU-1"].Created; len(left) != 1 || !left[0].Is(small) {
		t.Errorf("left are %+v", left)
	}
	g.Instances = nil
	if !ForgetAbsent(s, "GPU-1", &g) || len(s.Unconfirmed) != 0 {
		t.Errorf("the record has %+v", s.Unconfirmed)
	}
}

// The removal of an instance ends the record of its creation, also on a GPU that never was as a spec says.
func TestARemovedInstanceIsNotExpected(t *testing.T) {
	three := observetest.Instance(9, 0)
	args := step.Must(mig.InstanceArgs{Placed: mig.Placed{ProfileID: three.ProfileID, Placement: three.Placement}})
	s := &store.State{
		Unconfirmed: map[gpu.UUID]store.Unconfirmed{
			"GPU-1": {Created: []store.CreatedInstance{{ProfileID: three.ProfileID, Placement: three.Placement}}},
		},
	}
	RecordOwnership(s, "GPU-1", []step.Step{{Kind: mig.KindDestroy, GPU: "GPU-1", Args: args}})
	if len(s.Unconfirmed) != 0 || len(s.Achieved) != 0 {
		t.Errorf("the records have %+v, %+v", s.Unconfirmed, s.Achieved)
	}
}
