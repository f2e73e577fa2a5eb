package planner

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// The kinds of step that end a lease. Nothing brings it back: they have no undo.
const (
	KindLeaseStop    = "lease.stop"    // with its processes
	KindLeaseRelease = "lease.release" // on the books only
)

// LeaseStopArgs are the arguments of both.
type LeaseStopArgs struct {
	Lease string `json:"lease"`
}

// PlanStops ends the leases that cannot go on under a spec: their grant is gone, their GPU is for something else, or
// their instance goes. It is pure; whoever admits the plan asks for authority. They are steps of the node, not of a GPU:
// those come first, before slices are taken away and before any GPU of a lease with several is changed.
func PlanStops(want *state.Desired, live []lease.Lease, hardware []step.Step) []step.Step {
	var out []step.Step
	for i := range live {
		l := &live[i]
		if reason := stopReason(want, l, hardware); reason != "" {
			out = append(out, stopStep(l, reason))
		}
	}
	return out
}

func stopStep(l *lease.Lease, reason string) step.Step {
	return step.Step{
		Kind: KindLeaseStop, Phase: step.RevokeAccess, Args: step.Must(LeaseStopArgs{l.ID}),
		Text: "stop lease " + l.ID, Reason: reason, Disruption: step.Running, Disturbs: []step.Subject{step.LeaseOf(l.ID, l.User)},
	}
}

func stopReason(want *state.Desired, l *lease.Lease, hardware []step.Step) string {
	may, ok := want.Grants[state.GrantKey{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}]
	if !ok {
		if l.Origin == lease.OriginLogin || l.Origin == lease.OriginUnit {
			return "" // It is let go of when the spec is in force, and nobody is stopped for that.
		}
		return fmt.Sprintf("the spec has no grant %s of %s any more", l.Terms.Spec.Name, l.Terms.Tenant)
	}
	for _, id := range l.Place.GPUs {
		if mode := want.Mode(id); mode != l.Terms.Kind() {
			return fmt.Sprintf("its GPU becomes %s", mode)
		}
		if !slices.Contains(may, id) {
			return fmt.Sprintf("grant %s of %s may not use its GPU any more", l.Terms.Spec.Name, l.Terms.Tenant)
		}
		if l.Place.Instance != nil && destroys(hardware, id, *l.Place.Instance) {
			return "its MIG instance goes"
		}
	}
	return ""
}

func destroys(hardware []step.Step, id gpu.UUID, at gpu.Placement) bool {
	return slices.ContainsFunc(hardware, func(s step.Step) bool {
		var args mig.InstanceArgs
		return s.Kind == mig.KindDestroy && s.GPU == string(id) && json.Unmarshal(s.Args, &args) == nil && args.Placement == at
	})
}
