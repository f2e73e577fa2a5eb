package plugin

import (
	"context"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
)

// endedLease is a lease that was released after processes of it were ended: its pods may not say so yet.
type endedLease struct {
	lease api.Lease
	until time.Time
}

const (
	// endedRetention is for how long a pod is looked for whose lease was released, and an event is tried; mostEnded is how many leases are
	// kept for that, and how many events.
	endedRetention = 10 * time.Minute
	mostEnded      = 256
)

// Remember keeps a lease that is about to be released.
func (f *Follower) Remember(l *api.Lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, endedLease{*l, time.Now().Add(endedRetention)})
	if over := len(f.ended) - mostEnded; over > 0 {
		f.ended = slices.Delete(f.ended, 0, over)
	}
}

// reports writes to the API server what is to be said of the pods of all leases.
func (f *Follower) reports(ctx context.Context, now time.Time, leases []api.Lease, tries attempts) (wait time.Duration) {
	wait = f.sendNotices(ctx, now, tries)
	for i := range leases {
		wait = sooner(wait, f.report(ctx, now, &leases[i], tries))
	}
	wait = sooner(wait, f.reportEnded(ctx, now, tries))
	tries.forget()
	return wait
}

// report writes why the processes of a lease were ended into the status of its pods. It returns after which time that has to be tried
// again; 0: it is done.
func (f *Follower) report(ctx context.Context, now time.Time, l *api.Lease, tries attempts) (wait time.Duration) {
	namespace, name, _, ok := claims.ClaimOf(l)
	if !ok || l.Engine.EndedAt == nil || l.Reason == "" {
		return 0
	}
	message := "gpushare ended its processes that used the GPU: " + l.Reason
	for _, p := range f.Pods.Of(namespace, name) {
		if p.Created.After(*l.Engine.EndedAt) {
			continue // It came later.
		}
		wait = sooner(wait, tries.of("report "+string(p.UID)+" "+message).due(
			now, func() error { return f.Reporter.Report(ctx, &p, message, *l.Engine.EndedAt) }, func(err error) {
				f.Log.Warn("the status of a pod does not say why it was ended", "pod", namespace+"/"+p.Name, "error", err)
			},
		))
	}
	return wait
}

// reportEnded does that for leases that were released.
func (f *Follower) reportEnded(ctx context.Context, now time.Time, tries attempts) (wait time.Duration) {
	keepUndone(f, &f.ended, func(e endedLease) bool {
		if now.After(e.until) {
			return true
		}
		after := f.report(ctx, now, &e.lease, tries)
		wait = sooner(wait, after)
		return after == 0
	})
	return wait
}

// keepUndone removes from a list of the follower what is done. It may grow meanwhile.
func keepUndone[T any](f *Follower, list *[]T, done func(T) bool) {
	f.mu.Lock()
	todo := *list
	*list = nil
	f.mu.Unlock()
	todo = slices.DeleteFunc(todo, done)
	f.mu.Lock()
	defer f.mu.Unlock()
	*list = append(todo, *list...)
}
