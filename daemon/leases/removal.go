package leases

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// removal is a running lease whose user is not a member of its tenant any more.
type removal struct {
	generation uint64
	since      time.Time // when the directory said so
	due        time.Time // when it is asked again
	stopped    bool
	noted      string // what becomes of the lease, as the last notice says
}

// recheckLoop ends at once the requests that wait for what their users may not have any more. It does not wait for the directory.
func (ls *Leases) recheckLoop(ctx context.Context) {
	for {
		next := ls.Identities.Next()
		ls.Table.Recheck()
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// removalLoop ends the running leases of a tenant with on_removal: stop whose users are members no more, when the directory has said
// it twice. One wrong answer of it ends no lease.
func (ls *Leases) removalLoop(ctx context.Context) {
	removed := map[string]*removal{}
	for {
		next := ls.Identities.Next()
		timer := time.NewTimer(ls.checkRemoved(ctx, removed))
		select {
		case <-next:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// checkRemoved does what is due for all running leases, and returns when to look again.
func (ls *Leases) checkRemoved(ctx context.Context, removed map[string]*removal) time.Duration {
	next, live := time.Hour, map[string]bool{}
	var due []lease.Lease
	again := map[int]time.Time{} // the users of due, and since when the directory must have answered
	for _, l := range ls.Table.Live() {
		uid, has := l.RightOf()
		if l.State != lease.Running || !has {
			continue
		}
		if _, ok := ls.State.Desired().Tenant(l.Terms.Tenant); !ok {
			continue // The change that removed the tenant ends its leases.
		}
		why, at := ls.Identities.Removed(uid, l.Terms.Tenant)
		if why == "" {
			continue
		}
		live[l.ID] = true
		r := removed[l.ID]
		if r == nil || r.generation != l.Generation {
			r = &removal{generation: l.Generation, since: at, due: ls.Now().Add(ls.removalGrace())}
			removed[l.ID] = r
		}
		left, waits := ls.onRemoval(&l, r, why)
		if waits && left <= 0 {
			due = append(due, l)
			if r.since.After(again[uid]) {
				again[uid] = r.since
			}
			continue
		}
		next = min(next, left)
	}
	if len(due) > 0 {
		ls.Identities.QueryAgain(ctx, again)
	}
	for i := range due {
		next = min(next, ls.stopRemoved(ctx, &due[i], removed[due[i].ID]))
	}
	for id := range removed {
		if !live[id] {
			delete(removed, id)
		}
	}
	return max(next, time.Millisecond)
}

// removalGrace is the least time between the two answers of the directory that end a lease.
func (ls *Leases) removalGrace() time.Duration {
	if ls.ConvergeInterval == nil {
		return time.Minute
	}
	return ls.ConvergeInterval()
}

// onRemoval notifies the user of one lease of a removed member what becomes of it, and returns when to look again. waits: the lease is
// stopped then if the directory says it again.
func (ls *Leases) onRemoval(l *lease.Lease, r *removal, why string) (left time.Duration, waits bool) {
	want := ls.State.Desired()
	switch {
	case !want.StopsOnRemoval(l.Terms.Tenant):
		ls.noteRemoval(l, r, why, "this lease goes on (on_removal: continue)")
		return time.Hour, false
	case !want.Enforcing():
		ls.noteRemoval(
			l, r, why,
			"this lease goes on, because gpushare only observes (node.enforce); otherwise it would be stopped (on_removal: stop)",
		)
		return time.Hour, false
	case r.stopped:
		return time.Hour, false
	}
	ls.noteRemoval(
		l, r, why,
		fmt.Sprintf("this lease will be stopped in %s (on_removal: stop), unless they are a member again", api.Duration(ls.removalGrace())),
	)
	return r.due.Sub(ls.Now()), true
}

// stopRemoved stops a lease if the directory has said again that its user is a member no more, and returns when to look again.
func (ls *Leases) stopRemoved(ctx context.Context, l *lease.Lease, r *removal) time.Duration {
	now, ok := ls.Table.Get(l.ID)
	if !ok {
		return time.Hour
	}
	l = &now // The directory may have taken long, and the tenant may have got another name.
	uid, _ := l.RightOf()
	why, at := ls.Identities.Removed(uid, l.Terms.Tenant)
	switch {
	case why == "":
		return time.Millisecond // The next pass forgets it.
	case !at.After(r.since):
		r.due = ls.Now().Add(ls.removalGrace()) // The directory did not answer.
		return ls.removalGrace()
	}
	r.stopped = true
	ls.Audit("gpushared", "removal", fmt.Sprintf("lease %s of user %s is stopped: %s (on_removal: stop)", l.ID, l.User, why))
	ls.StopInBackground(l, why+" (on_removal: stop)")
	return time.Hour
}

// noteRemoval notifies the user of a lease once. After a restart of the daemon the lease has the last notices of before.
func (ls *Leases) noteRemoval(l *lease.Lease, r *removal, why, what string) {
	if r.noted == what {
		return
	}
	r.noted = what
	text := why + ": " + what
	if now, ok := ls.Table.Get(l.ID); ok && now.Terms.Tenant == l.Terms.Tenant && !slices.Contains(now.Notices, text) {
		ls.Table.Notice(l.ID, lease.Notice{Kind: "lease.member-removed", Text: text})
	}
}
