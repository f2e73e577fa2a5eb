package planner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// AdmitUnmanage refuses to stop leases and processes without authority, and names all of them. ends is what ends for each lease.
func AdmitUnmanage(steps []step.Step, ends []api.LeaseEnd, a Authority) error {
	var users []step.Subject
	for i := range steps {
		if steps[i].Irreversible != "" && !a.Force {
			return &api.Error{
				Kind:    api.KindInfeasible,
				Message: fmt.Sprintf("cannot %s: %s", steps[i].Text, steps[i].Irreversible),
				Hint:    "nothing was changed; 'gpushare unmanage --all --force' destroys it nevertheless: if a later step fails, it is not created again",
			}
		}
		if steps[i].Disruption == step.Running {
			users = step.Merge(users, steps[i].Disturbs)
		}
	}
	if len(users) == 0 || a.Force {
		return nil
	}
	return &api.Error{
		Kind: api.KindInUse, Message: "the node is in use by " + step.Join(users),
		Hint:   "nothing was changed; wait until they end, or use --force to stop them (SIGTERM, then SIGKILL)",
		Leases: ends,
	}
}

// PlanUnmanageStops plans the end of the leases that run in cgroups of gpushare, and of those that lose their GPU or
// instance. Processes that were attached in place continue; their leases are released when no spec stays in force. names are
// the slices to remove on a host without cgroups: leases are tracked by them, so they are removed after the leases.
func PlanUnmanageStops(live []lease.Lease, names []cgroup.SliceState, hardware []step.Step, what string) []step.Step {
	const reason = "the node is unmanaged"
	var out []step.Step
	for i := range live {
		l := &live[i]
		isolated := !l.InPlace() || l.Origin == lease.OriginContainer
		switch {
		// A lease that was just placed has no cgroup yet.
		case isolated && (l.Isolation.Cgroup != "" || l.State != lease.Running), !l.InPlace() && isUnder(l, names), losesPlace(l, hardware):
			out = append(out, stopStep(l, reason))
		case what == store.UnmanagedAll && l.InPlace():
			out = append(out, step.Step{
				Kind: KindLeaseRelease, Phase: step.RevokeAccess, Args: step.Must(LeaseStopArgs{l.ID}),
				Text: "release lease " + l.ID + ": its processes continue", Reason: reason, Disruption: step.None,
			})
		}
	}
	return out
}

func isUnder(l *lease.Lease, names []cgroup.SliceState) bool {
	return slices.ContainsFunc(names, func(s cgroup.SliceState) bool {
		return s.Name == state.SliceOf(l)
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

// PlanUnmanageGPU plans a GPU as it was before gpushare managed it: managed instances are removed, and modes are restored.
// What needs more authority stays and is reported as a warning. It is pure.
func PlanUnmanageGPU(g *observe.GPU, was store.GPUModes, use Usage) (steps []step.Step, warnings []string) {
	name := g.Identity.Name()
	if g.Err != nil {
		return nil, []string{name + " does not answer and stays unchanged: " + g.Err.Error()}
	}
	steps, warnings = planMIGAsBefore(g, was.MIG, use)
	if was.ComputeMode != "" && g.ComputeMode != gpu.ComputeModeUnknown && g.ComputeMode != was.ComputeMode && g.MPS == nil {
		steps = append(steps, computeModeStep(g, was.ComputeMode, "it had this mode before"))
	}
	for i := range steps {
		steps[i].Reason = "the node is unmanaged"
	}
	return steps, warnings
}

// planMIGAsBefore plans the removal of managed instances, and the MIG mode from before; was is nil where gpushare never changed it. A
// pending mode is then of another program, and is not changed.
func planMIGAsBefore(g *observe.GPU, was *bool, use Usage) (steps []step.Step, warnings []string) {
	name, state := g.Identity.Name(), g.MIG
	if was == nil {
		state.Pending = state.Current
		was = &state.Current
	}
	on := *was
	var r mig.Result
	var err error
	switch {
	case !state.Current && state.Pending == on && !on:
		return nil, nil
	case !state.Current && on:
		r, err = planMIGOn(g, use)
	case !state.Current: // Only a pending mode is cancelled: without it the next boot would turn MIG on.
		r, err = mig.PlanDevice(mig.Device{MIG: state}, mig.Target{}, mig.Options{})
	case g.Profiles == nil:
		return nil, []string{name + ": its instances and its MIG mode stay: the driver does not report its profiles"}
	default:
		r, err = unmanageMIG(g, state, on, use)
		if err != nil && !on {
			warnings = append(warnings, notRestored(g, on, err))
			on = true
			r, err = unmanageMIG(g, state, on, use)
		}
		if err != nil {
			return nil, append(warnings, fmt.Sprintf("%s: its instances stay: %v", name, err))
		}
	}
	if err != nil {
		return nil, append(warnings, notRestored(g, on, err))
	}
	return r.Steps(g.Identity.UUID), warnings
}

// notRestored is the warning about a MIG mode from before that is not restored, with the command that restores it.
func notRestored(g *observe.GPU, on bool, err error) string {
	is, word, digit := "on", "off", 0
	if on {
		is, word, digit = "off", "on", 1
	}
	if !g.MIG.Current && g.MIG.Pending {
		is = "pending"
	}
	why := err.Error()
	if errors.Is(err, gpu.ErrResetRequired) {
		why = "the GPU must be reset for it" // Unmanaging has no authority for that.
	}
	return fmt.Sprintf(
		"%s: MIG mode was %s before gpushare changed it, and stays %s: %s; 'nvidia-smi -i %s -mig %d' turns it %s once the GPU is idle",
		g.Identity.Name(),
		word,
		is,
		why,
		g.Identity.Argument(),
		digit,
		word,
	)
}

// planMIGOn plans MIG mode on, without instances. Leases on the GPU are stopped with authority; processes of no lease are not, so
// they are in the way.
func planMIGOn(g *observe.GPU, use Usage) (mig.Result, error) {
	device := mig.Device{MIG: g.MIG}
	device.InUseBy, _ = inUseBy(g, nil, use)
	for _, u := range device.InUseBy {
		if u.Kind != step.Lease {
			device.Unstoppable = append(device.Unstoppable, u)
		}
	}
	return mig.PlanDevice(device, mig.Target{On: true}, mig.Options{Force: true})
}

// unmanageMIG plans the MIG part of a GPU with MIG mode. The steps name the processes that they would stop; AdmitUnmanage decides on
// them. Instances that gpushare does not manage stay, because no instance is planned in their place.
func unmanageMIG(g *observe.GPU, state gpu.MIGState, on bool, use Usage) (mig.Result, error) {
	plain := &api.GPUSpec{Mode: api.ModeMIG} // Not dynamic: no idle instance is kept.
	device := mig.Device{MIG: state, Present: Present(plain, g, use), Profiles: *g.Profiles}
	device.InUseBy, device.Unstoppable = inUseBy(g, nil, use)
	for i := range device.Present {
		if b := &device.Present[i]; b.Foreign && !on {
			return mig.Result{}, fmt.Errorf("%s at %d is not managed by gpushare", g.Profiles.GIName(b.ProfileID), b.Placement.Start)
		}
	}
	return mig.PlanDevice(device, mig.Target{On: on}, mig.Options{Force: true})
}

// The kinds of step that remove what separate loops maintain by the spec in force. Those loops would remove it too, but
// later: with the steps the plan shows it, and the end of the change means that it is removed. They have no undo, because the
// next spec creates it again.
const (
	KindCDIRemove   = "cdi.remove"    // no arguments
	KindLoginLimits = "logins.remove" // no arguments
	// KindMemoryLimits removes the driver's limits of GPU memory from cgroups of other managers; no arguments.
	KindMemoryLimits = "memory-limits.remove"
)
