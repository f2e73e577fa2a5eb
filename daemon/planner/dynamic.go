package planner

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// WithoutDisruption leaves out what would disturb somebody: nobody gave any authority.
func WithoutDisruption(steps []step.Step) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool { return s.Disruption == step.Running })
}

// PlanOnDemand plans one GPU: instances at exactly these rooms, and these idle ones taken away. Others stay, unless they
// are idle and in the way. It is pure.
func PlanOnDemand(e *api.GPUSpec, g *observe.GPU, use Usage, create []lease.InstanceSlot, remove []gpu.Placement) ([]step.Step, error) {
	switch {
	case g.Err != nil:
		return nil, g.Err
	case g.Profiles == nil || !g.MIG.Current:
		return nil, fmt.Errorf("cannot make an instance on GPU %d: its MIG mode is off", g.Identity.Index)
	}
	there := Present(e, g, use)
	for i := range there {
		there[i].Keepable = !slices.Contains(remove, there[i].Placement)
		if there[i].InUse && !there[i].Keepable {
			there[i].Keepable = true // Somebody came.
		}
	}
	wants := make([]mig.Request, len(create))
	for i, r := range create {
		wants[i] = mig.Request{Name: r.Name, At: &r.Placement}
	}
	r, err := mig.Plan(*g.Profiles, there, wants, mig.Options{})
	if err != nil {
		return nil, err
	}
	steps := r.Steps(g.Identity.UUID)
	for i := range steps {
		switch steps[i].Kind {
		case mig.KindCreate:
			steps[i].Reason = "a request waits for it"
		case mig.KindDestroy:
			steps[i].Reason = "nobody needs it"
			if len(create) > 0 {
				steps[i].Reason = "nobody needs it, or a request needs its room"
			}
		}
	}
	return steps, nil
}

// RestoredLayout gives what of a GPU's layout comes back after a boot: what was made on demand was for leases that are over.
func RestoredLayout(want *state.Desired, id gpu.UUID, a *store.Achieved) []gpu.Instance {
	if !want.Dynamic(id) {
		return a.Layout
	}
	return slices.DeleteFunc(slices.Clone(a.Layout), func(in gpu.Instance) bool {
		m := state.InstanceRecordOf(a, in.Placement)
		return m == nil || !m.Imported
	})
}
