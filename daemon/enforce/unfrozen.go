package enforce

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// leaseStopper stops leases.
type leaseStopper interface {
	// StopInBackground stops a lease gracefully and tries again until it has ended.
	StopInBackground(l *lease.Lease, reason string)
}

// unfrozenLease is a lease that ran in slices of others.
type unfrozenLease struct {
	quota.Unfrozen
	stopped bool // its stop was requested
}

// noteRun counts a failed freeze of a lease if it was measured that the lease ran, or if its user has made more parts than are frozen,
// and returns whether the lease is to be stopped for that. A freeze that failed for another reason, or without a measurement, is no
// offence of the lease. The lock is held.
func (sl *Slicer) noteRun(id string, err error, now time.Duration, stops bool) bool {
	if !errors.Is(err, cgroup.ErrRuns) && !errors.Is(err, cgroup.ErrManyParts) {
		return false
	}
	u := sl.unfrozen[id]
	if u == nil {
		if sl.unfrozen == nil {
			sl.unfrozen = map[string]*unfrozenLease{}
		}
		u = &unfrozenLease{}
		sl.unfrozen[id] = u
	}
	if !u.Ran(now) || !stops || u.stopped {
		return false
	}
	u.stopped = true
	return true
}

// forgetRuns forgets the leases that are none of the GPU any more. The lock is held.
func (sl *Slicer) forgetRuns(members []quota.Member) {
	live := make(map[string]bool, len(members))
	for i := range members {
		live[members[i].Lease] = true
	}
	for id := range sl.unfrozen {
		if !live[id] {
			delete(sl.unfrozen, id)
		}
	}
}

// stopUnfrozen stops a lease that ran in too many slices of others: a notice to its users, SIGTERM, the grace, SIGKILL.
func (d *Enforcer) stopUnfrozen(id string) {
	l, ok := d.Table.Get(id)
	if !ok || l.State != lease.Running {
		return
	}
	reason := fmt.Sprintf(
		"it ran in %d slices of others within %s: it could not be frozen (isolation.unfrozen: stop)", quota.UnfrozenSlices,
		api.Duration(quota.UnfrozenWithin),
	)
	d.Audit("gpushared", "unfrozen", "stops lease "+id+": "+reason)
	d.Leases.StopInBackground(&l, reason)
}
