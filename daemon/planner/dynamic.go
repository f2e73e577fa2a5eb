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

// WithoutDisruption drops the steps that would stop a lease or a process: instances are created on demand without authority.
func WithoutDisruption(steps []step.Step) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool { return s.Disruption == step.Running })
}

// PlanOnDemand plans one GPU: it creates instances at exactly these places and removes these idle ones. Other instances
// stay, unless they are idle and overlap a new one. It is pure.
func PlanOnDemand(e *api.GPUSpec, g *observe.GPU, use Usage, create []lease.InstanceSlot, remove []gpu.Placement) ([]step.Step, error) {
	switch {
	case g.Err != nil:
		return nil, g.Err
	case g.MIG.Missing.CanRead() != nil:
		return nil, fmt.Errorf("cannot create an instance on %s: %w", g.Identity.Name(), g.MIG.Missing.CanRead())
	case g.Profiles == nil || !g.MIG.Current:
		return nil, fmt.Errorf("cannot create an instance on %s: its MIG mode is off", g.Identity.Name())
	}
	present := Present(e, g, use)
	for i := range present {
		present[i].Keepable = !slices.Contains(remove, present[i].Placement)
		if present[i].InUse && !present[i].Keepable {
			present[i].Keepable = true // It is in use again.
		}
	}
	requests := make([]mig.Request, len(create))
	for i, r := range create {
		requests[i] = onDemand(r.Name)
		requests[i].At = &r.Placement
	}
	r, err := mig.Plan(*g.Profiles, present, requests, mig.Options{})
	if err == nil {
		err = r.Check(g.MIG, mig.Options{Force: !destroysImported(g.Identity.UUID, r.Destroy, use)})
	}
	if err != nil {
		return nil, err
	}
	steps := r.Steps(g.Identity.UUID)
	for i := range steps {
		switch steps[i].Kind {
		case mig.KindCreate:
			steps[i].Reason = "a request waits for it"
		case mig.KindDestroy:
			steps[i].Reason = "no lease needs it"
			if len(create) > 0 {
				steps[i].Reason = "no lease needs it, or a request needs its place"
			}
		}
	}
	return steps, nil
}

// destroysImported reports whether one of the instances was imported. Only a spec that has instances come and go removes those that
// were created for it also where they could not be created again.
func destroysImported(id gpu.UUID, destroy []mig.Present, use Usage) bool {
	return use.Imported != nil && slices.ContainsFunc(destroy, func(b mig.Present) bool { return use.Imported(id, b.Placement) })
}

// RestoredLayout is the part of a GPU's layout that is restored after a boot. Instances that were created on demand are not:
// their leases have ended.
func RestoredLayout(want *state.Desired, id gpu.UUID, a *store.Achieved) []gpu.Instance {
	if !want.Dynamic(id) {
		return a.Layout
	}
	return slices.DeleteFunc(slices.Clone(a.Layout), func(in gpu.Instance) bool {
		m := state.InstanceRecordOf(a, in.Placement)
		return m == nil || !m.Imported
	})
}
