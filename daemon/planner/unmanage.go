package planner

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// AdmitUnmanage refuses to stop anybody without authority, and names them all.
func AdmitUnmanage(steps []step.Step, a Authority) error {
	var who []step.Subject
	for i := range steps {
		if steps[i].Disruption == step.Running {
			who = step.Merge(who, steps[i].Disturbs)
		}
	}
	if len(who) == 0 || a.Force {
		return nil
	}
	return &api.Error{
		Kind: api.KindInUse, Message: "the node is in use by " + step.Join(who),
		Hint: "nothing was changed; --force stops them, the polite way, or wait until they end",
	}
}

// PlanUnmanageStops ends the leases that are held by walls of ours, and those whose GPU or instance is taken back. Who
// stays where he is goes on, and when no spec stays in force is in no lease any more. Names are the slices that go
// where there are no cgroups: leases are followed under them, and they are not given up before those have ended.
func PlanUnmanageStops(live []lease.Lease, names []cgroup.SliceState, hardware []step.Step, what string) []step.Step {
	const reason = "the node is given back"
	var out []step.Step
	for i := range live {
		l := &live[i]
		isolated := !l.InPlace() || l.Origin == lease.OriginContainer
		switch {
		// One that was placed just now has no walls yet, and will have.
		case isolated && (l.Isolation.Cgroup != "" || l.State != lease.Running), !l.InPlace() && isUnder(l, names), losesPlace(l, hardware):
			out = append(out, stopStep(l, reason))
		case what == store.UnmanagedAll && l.InPlace():
			out = append(out, step.Step{
				Kind: KindLeaseRelease, Phase: step.RevokeAccess, Args: step.Must(LeaseStopArgs{l.ID}),
				Text: "let go of lease " + l.ID + ": its processes go on", Reason: reason, Disruption: step.None,
			})
		}
	}
	return out
}

func isUnder(l *lease.Lease, names []cgroup.SliceState) bool {
	return slices.ContainsFunc(names, func(s cgroup.SliceState) bool {
		return s.Name == cgroup.SliceName{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}
	})
}

func losesPlace(l *lease.Lease, hardware []step.Step) bool {
	for _, id := range l.Place.GPUs {
		if l.Place.Instance != nil && destroys(hardware, id, *l.Place.Instance) {
			return true
		}
		if slices.ContainsFunc(hardware, func(s step.Step) bool { return s.GPU == string(id) && s.Kind == mig.KindMode }) {
			return true
		}
	}
	return false
}

// PlanUnmanageGPU makes a GPU be as it was found: instances of ours go, and modes become what they were. What cannot be
// taken back without more authority stays, and is told. It is pure.
func PlanUnmanageGPU(g *observe.GPU, was store.GPUModes, use Usage) (steps []step.Step, warnings []string) {
	name := fmt.Sprintf("GPU %d", g.Identity.Index)
	if g.Err != nil {
		return nil, []string{name + " does not answer, so it stays as it is: " + g.Err.Error()}
	}
	switch on := was.MIG == nil || *was.MIG; {
	case !g.MIG.Current && !g.MIG.Pending:
	case g.Profiles == nil:
		warnings = append(warnings, name+": its instances and its MIG mode stay: the driver does not tell its profiles")
	default:
		r, err := unmanageMIG(g, on, use)
		if err != nil && !on {
			warnings = append(warnings, fmt.Sprintf("%s: MIG mode stays on: %v", name, err))
			r, err = unmanageMIG(g, true, use)
		}
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("%s: its instances stay: %v", name, err))
		} else {
			steps = r.Steps(g.Identity.UUID)
		}
	}
	if was.ComputeMode != "" && g.ComputeMode != gpu.ComputeModeUnknown && g.ComputeMode != was.ComputeMode && g.MPS == nil {
		steps = append(steps, computeModeStep(g, was.ComputeMode, "it was so before"))
	}
	for i := range steps {
		steps[i].Reason = "the node is given back"
	}
	return steps, warnings
}

// unmanageMIG plans the MIG part. Whoever is in the way is named by the steps, and admitted or not with all others; what
// others made is never in the way, because nothing is wanted in its place.
func unmanageMIG(g *observe.GPU, on bool, use Usage) (mig.Result, error) {
	plain := &api.GPUSpec{Mode: api.ModeMIG} // No dynamic layout: nothing is kept in hand.
	device := mig.Device{MIG: g.MIG, Present: Present(plain, g, use), Profiles: *g.Profiles}
	device.InUseBy, device.Unstoppable = inUseBy(g, nil, use)
	return mig.PlanDevice(device, mig.Target{On: on}, mig.Options{Force: true})
}

// The kinds of step that take back what loops of their own keep as the spec in force says. Those loops do the same, sooner
// or later: the steps are there to be shown, and for whoever waits to know that it is done. What was taken back is made
// again by the next spec, so they have no undo.
const (
	KindCDIRemove   = "cdi.remove"    // no arguments
	KindLoginLimits = "logins.remove" // no arguments
)
