package leases

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// preempt stops the leases that the table chose to free a place for requests of higher priorities.
func (ls *Leases) preempt(ctx context.Context) {
	for _, p := range ls.Table.TakePreemptions() {
		for i := range p.Victims {
			victim := &p.Victims[i]
			if !ls.State.Desired().Enforcing() || !ls.Table.Preempts(victim.ID) {
				continue // The request was placed or cancelled, or the spec does not allow it any more.
			}
			ls.reportPreemption(&p.Request, victim)
			// The user of the lease may not learn who waits: that may be another tenant.
			ls.StopInBackground(victim, "a request of a higher priority needs its place (preempt: stop)")
		}
	}
}

// reportPreemption records which lease is stopped for which request. The event is the victim's: it names no other tenant.
func (ls *Leases) reportPreemption(request, victim *lease.Lease) {
	ls.Events.Publish(
		victim.Event(
			"lease.preempted",
			fmt.Sprintf("lease %s of %s is being stopped: a request of a higher priority needs its place", victim.ID, victim.Terms.Tenant),
		),
	)
	ls.Events.Publish(api.Event{
		Kind:    "lease.preempts",
		Tenant:  request.Terms.Tenant,
		Lease:   request.ID,
		Message: fmt.Sprintf("a lease of a lower priority is being stopped for the request %s of %s", request.ID, request.User),
	})
	ls.Audit(
		"gpushared",
		"preempt",
		fmt.Sprintf(
			"lease %s of tenant %s (%s priority, user %s) is stopped for the request %s of tenant %s (%s priority, user %s)", victim.ID,
			victim.Terms.Tenant, priority(victim), victim.User, request.ID, request.Terms.Tenant, priority(request), request.User,
		),
	)
}

func priority(l *lease.Lease) string {
	if l.Terms.Priority == "" {
		return "normal"
	}
	return l.Terms.Priority
}
