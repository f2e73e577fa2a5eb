package state

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// dynamicSpec is a GPU with instances on demand.
func dynamicSpec(keep time.Duration) *api.GPUSpec {
	d := api.Duration(keep)
	return &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Dynamic: true, Keep: &d}}
}

func TestManagedLayout(t *testing.T) {
	here := store.Epoch{Boot: "b", Driver: "d"}
	record := func(start, size uint32, n uint64) store.InstanceRecord {
		return store.InstanceRecord{Placement: gpu.Placement{Start: start, Size: size}, Generation: n}
	}
	stepAt := func(kind string, in gpu.Instance) step.Step {
		return step.Step{
			Kind: kind,
			GPU:  string(observetest.One),
			Args: step.Must(mig.InstanceArgs{Placed: mig.Placed{ProfileID: in.ProfileID, Placement: in.Placement}}),
		}
	}
	fixed := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: api.LayoutOf("3g.20gb")}}
	three, small := observetest.Instance(9, 4), observetest.Instance(19, 0)
	had := store.Achieved{Epoch: here, Layout: []gpu.Instance{three}, Instances: []store.InstanceRecord{record(4, 4, 5)}}
	missing := had
	missing.Instances = []store.InstanceRecord{{Placement: three.Placement, Generation: 5, Missing: true}}
	for _, c := range []struct {
		name  string
		e     *api.GPUSpec
		have  observe.GPU
		was   store.Achieved
		now   store.Epoch
		steps []step.Step
		want  []store.InstanceRecord
	}{
		{"nothing is managed", dynamicSpec(0), observetest.Device(true, three, small), store.Achieved{}, here, nil, nil},
		{"it is in the layout", fixed, observetest.Device(true, three, small), store.Achieved{}, here, nil, []store.InstanceRecord{record(4, 4, 11)}},
		{"it was managed", dynamicSpec(0), observetest.Device(true, three, small), had, here, nil, []store.InstanceRecord{record(4, 4, 5)}},
		{"it is created", dynamicSpec(0), observetest.Device(true, three, small), had, here, []step.Step{stepAt(mig.KindCreate, small)}, []store.InstanceRecord{record(4, 4, 5), record(0, 1, 11)}},
		{"it is created again", dynamicSpec(0), observetest.Device(true, three), had, here, []step.Step{stepAt(mig.KindDestroy, three), stepAt(mig.KindCreate, three)}, []store.InstanceRecord{record(4, 4, 11)}},
		{"another boot", dynamicSpec(0), observetest.Device(true, three), had, store.Epoch{Boot: "c", Driver: "d"}, nil, nil},
		{"another boot, and it is in the layout", fixed, observetest.Device(true, three), had, store.Epoch{Boot: "c", Driver: "d"}, nil, []store.InstanceRecord{record(4, 4, 11)}},
		{"it was missing", fixed, observetest.Device(true, three), missing, here, nil, []store.InstanceRecord{record(4, 4, 11)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := store.State{LastInstanceGeneration: 10}
			layout, records := ManagedLayout(&s, c.e, &c.have, &c.was, c.now, c.steps)
			if diff := cmp.Diff(c.want, records); diff != "" {
				t.Error(diff)
			}
			if len(layout) != len(records) {
				t.Errorf("%d instances with %d records", len(layout), len(records))
			}
		})
	}
}

// The arguments of a step, not its reason, say whether the instance is imported. A step without the argument imports none.
func TestImportedBySteps(t *testing.T) {
	at := gpu.Placement{Start: 4, Size: 4}
	placed := mig.Placed{ProfileID: 9, Placement: at}
	for _, c := range []struct {
		name string
		args json.RawMessage
		want bool
	}{
		{"imported", step.Must(mig.InstanceArgs{Placed: placed, Imported: true}), true},
		{"created", step.Must(mig.InstanceArgs{Placed: placed}), false},
		{"without the argument", json.RawMessage(`{"profile_id":9,"placement":{"start":4,"size":4}}`), false},
	} {
		var args mig.InstanceArgs
		if err := json.Unmarshal(c.args, &args); err != nil || args.Placement != at {
			t.Errorf("%s: it is read as %+v: %v", c.name, args, err)
		}
		stepAt, imported := CreatedBy(
			[]step.Step{
				{
					Kind:   mig.KindCreate,
					GPU:    string(observetest.One),
					Args:   c.args,
					Reason: "it is imported, and compute instances are missing",
				},
			},
			observetest.One,
		)
		if !stepAt[at] || imported[at] != c.want {
			t.Errorf("%s: created %v, imported %v", c.name, stepAt[at], imported[at])
		}
	}
}

func TestEstimate(t *testing.T) {
	node := &observe.Node{GPUs: []observe.GPU{
		{
			Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: observetest.One, Model: "A100"}},
		},
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-2", Model: "A100"}}},
	}}
	s := &store.State{}
	steps := []step.Step{
		{ID: 1, Kind: "slice.set"},
		{ID: 2, Kind: mig.KindDestroy, GPU: string(observetest.One)},
		{ID: 3, Kind: mig.KindCreate, GPU: string(observetest.One)},
		{ID: 4, Kind: mig.KindCreate, GPU: "GPU-2"},
	}
	plan := func() api.Plan {
		p := api.Plan{Steps: WireSteps(steps)}
		estimate(s.StepDurations, node, &p)
		return p
	}
	if p := plan(); p.EstimatedSeconds != 0 {
		t.Errorf("without measurements the estimate is %v s", p.EstimatedSeconds)
	}
	NoteTimes(s, node, steps, []stepDuration{{1, 1}, {2, 4}, {3, 2}, {4, 4}})
	if p := plan(); p.EstimatedSeconds != 1+4+3 || p.Steps[2].EstimatedSeconds != 3 {
		t.Errorf("the estimate is %v s, of a creation %v s", p.EstimatedSeconds, p.Steps[2].EstimatedSeconds)
	}
	for range 100 { // An update of the driver made it faster.
		NoteTimes(s, node, steps, []stepDuration{{3, 1}})
	}
	if got := WireTimes(s.StepDurations); len(got) != 3 || got[1].Kind != mig.KindCreate || got[1].Count != 102 ||
		got[1].MeanSeconds > 1.01 {
		t.Errorf("the step times are %+v", got)
	}
}
