package leases

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/lease"
)

// isolateInPlace registers processes for a lease without moving them.
func (ls *Leases) isolateInPlace(ctx context.Context, l *lease.Lease, p lease.Process) (lease.IsolationResult, error) {
	var result lease.IsolationResult
	var err error
	if result.Environment, result.Unset, err = ls.Policy.Environment(ctx, l); err != nil {
		return lease.IsolationResult{}, err
	}
	ls.inPlaceMu.Lock()
	defer ls.inPlaceMu.Unlock()
	if l.Origin == lease.OriginAttached {
		if err := ls.checkUnattributed(l, p); err != nil {
			return lease.IsolationResult{}, err
		}
	}
	state, err := ls.Attribution.InPlacePort(l).StartScope(ctx, scopeOf(l, cgroup.Process(p), nil))
	if err != nil {
		return lease.IsolationResult{}, err
	}
	if l.Kept() {
		err = ls.limitCgroups(ctx, l)
	} else {
		err = ls.Memory.Begin(ctx, l, state.Path)
	}
	if err != nil {
		return lease.IsolationResult{}, err
	}
	// The login filter allows the user to open the GPU from now on. If it cannot be changed a condition reports that
	// too.
	attached := *l
	attached.Process = p
	if err := ls.Policy.SyncLoginFilters(&attached, ""); err != nil {
		result.Warnings = append(result.Warnings, "opening its GPU may fail: "+err.Error())
	}
	result.Status = ls.inPlaceStatus(&attached, state)
	return result, nil
}

// releaseInPlace unregisters the processes of a lease in place, and removes the limits of their cgroups. They continue to run. What gives
// the lease processes or cgroups holds the lock: what it began is released too, and it begins nothing for a lease that is being ended.
func (ls *Leases) releaseInPlace(ctx context.Context, l *lease.Lease) {
	ls.inPlaceMu.Lock()
	defer ls.inPlaceMu.Unlock()
	ls.Memory.End(ctx, l)
	ls.Attachments.Release(l.ID)
	ls.Follow.Release(l.ID)
}

// recoverInPlace finds the processes of one lease in place after a restart.
func (ls *Leases) recoverInPlace(ctx context.Context, l *lease.Lease) bool {
	state, err := ls.Attribution.InPlacePort(l).Recover(ctx, scopeOf(l, cgroup.Process(l.Process), nil))
	if err != nil {
		if !errors.Is(err, cgroup.ErrNotFound) {
			ls.Log.Warn("cannot recover a lease", "lease", l.ID, "origin", l.Origin, "error", err)
		}
		return false
	}
	ls.Table.SetIsolation(l.ID, ls.inPlaceStatus(l, state))
	return true
}

// inPlaceStatus returns which restrictions are active and which are missing for a lease in place.
func (ls *Leases) inPlaceStatus(l *lease.Lease, s cgroup.ScopeState) api.IsolationStatus {
	w := api.IsolationStatus{Cgroup: s.Path, Unit: l.Unit}
	info := ls.Port.Info()
	if !ls.State.Desired().Enforcing() {
		w.NotEnforced = append(w.NotEnforced, "everything: the spec says enforce: observe")
	}
	if l.Origin == lease.OriginContainer {
		// It is below the grant's slice, whose device rules apply to it.
		w.Devices = info.Devices
		if info.Devices {
			w.NotEnforced = append(w.NotEnforced, "device rules of this lease alone: it can open every GPU of its grant")
		}
	}
	if ls.Policy.LoginFiltered(l) {
		w.Devices = true
		if l.Origin != lease.OriginUnit {
			w.NotEnforced = append(w.NotEnforced, "device rules of this lease alone: every login of "+l.User+" can open its GPU")
		}
	}
	if !w.Devices {
		w.DevicesReason = attribution.InPlaceReason(l) + ", so it can open the same GPUs as before"
		w.NotEnforced = append(w.NotEnforced, "device rules: "+w.DevicesReason)
	}
	if l.Origin == lease.OriginContainer {
		w.NotEnforced = append(w.NotEnforced, missingLimits(info)...)
	} else {
		w.NotEnforced = append(w.NotEnforced, "cpu, memory, tasks and io limits: those of its own cgroup apply, not the tenant's")
	}
	if n := len(leftCgroups(l)); n > 1 && l.Memory() > 0 {
		w.NotEnforced = append(w.NotEnforced, fmt.Sprintf(
			"GPU memory of its %d cgroups together by the driver, which limits each alone: their sum is measured, and acted on", n,
		))
	}
	switch l.Terms.Kind() {
	case api.ModeTimeslice:
		if why := ls.State.Desired().NeverFrozen(l); why != "" {
			w.NotEnforced = append(w.NotEnforced, api.TimeShareOf(why))
		}
	case api.ModeMPS:
		w.NotEnforced = append(
			w.NotEnforced, "its MPS share: it applies only to processes that were started with the environment of the lease",
		)
	}
	return w
}
