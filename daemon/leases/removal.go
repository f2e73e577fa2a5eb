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
}

// removalLoop ends what users may not have any more: at once the requests that wait, and the running leases of a tenant with
// on_removal: stop when the directory has said it twice. One wrong answer of it ends no lease.
func (ls *Leases) removalLoop(ctx context.Context) {
	removed := map[string]*removal{}
	for {
		next := ls.Identities.Next()
		ls.Table.Recheck()
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
		next = min(next, ls.onRemoval(ctx, &l, r, why))
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

// onRemoval does what is due for one lease of a removed member, and returns when to look again.
func (ls *Leases) onRemoval(ctx context.Context, l *lease.Lease, r *removal, why string) time.Duration {
	want := ls.State.Desired()
	if !want.StopsOnRemoval(l.Terms.Tenant) || !want.Enforcing() {
		ls.noteRemoval(l, why+": this lease goes on (on_removal: continue)")
		return time.Hour
	}
	if r.stopped {
		return time.Hour
	}
	ls.noteRemoval(l, fmt.Sprintf("%s: this lease will be stopped in %s (on_removal: stop), unless they are a member again", why, api.Duration(ls.removalGrace())))
	if left := r.due.Sub(ls.Now()); left > 0 {
		return left
	}
	uid, _ := l.RightOf()
	ls.Identities.QueryAgain(ctx, uid, r.since)
	switch again, at := ls.Identities.Removed(uid, l.Terms.Tenant); {
	case again == "":
		return time.Millisecond // The next pass forgets it.
	case !at.After(r.since):
		r.due = ls.Now().Add(ls.removalGrace()) // The directory did not answer.
		return ls.removalGrace()
	}
	r.stopped = true
	ls.Audit("gpushared", "removal", fmt.Sprintf("lease %s of user %s is stopped: %s (on_removal: stop)", l.ID, l.User, why))
	ls.StopInBackground(ctx, l, why+" (on_removal: stop)")
	return time.Hour
}

// noteRemoval notifies the user of a lease once. After a restart of the daemon too it has the notices of before.
func (ls *Leases) noteRemoval(l *lease.Lease, text string) {
	if now, ok := ls.Table.Get(l.ID); ok && !slices.Contains(now.Notices, text) {
		ls.Table.Notice(l.ID, lease.Notice{Kind: "lease.member-removed", Text: text})
	}
}
