package plugin

import (
	"context"
	"log/slog"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/pods"
)

// Follower does what the kubelet does not ask for: a further pod of a claim joins its lease, and a pod that was ended for its GPU memory
// says so in its status.
type Follower struct {
	Publisher *Publisher
	Leases    claims.Leases
	Cgroups   claims.Pods
	Pods      *pods.Watch
	Reporter  *pods.Reporter
	// Claim reads a claim from the API server.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	Log   *slog.Logger

	mu    locks.Mutex[locks.Leaf] // guards what follows
	ended []endedLease
}

// endedLease is a lease that was released after processes of it were ended: its pods may not say so yet.
type endedLease struct {
	lease api.Lease
	until time.Time
}

const (
	// joinInterval is how often the cgroup of a pod is looked for that is not there yet.
	joinInterval = 500 * time.Millisecond
	// followTimeout limits one pass.
	followTimeout = 30 * time.Second
	// endedRetention is for how long a pod is looked for whose lease was released; mostEnded is how many leases are kept for that.
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

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	joined := map[string]bool{}
	for ctx.Err() == nil {
		n, changed := f.Publisher.Last()
		wait := time.Duration(0)
		if n != nil {
			wait = f.pass(ctx, n.Status.Leases, joined)
		}
		var later <-chan time.Time
		if wait > 0 {
			later = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-f.Pods.Changed():
		case <-later:
		}
	}
}

// pass does what is due for all leases of claims, and returns after which time the next one is due at the latest; 0: after a change.
func (f *Follower) pass(ctx context.Context, leases []api.Lease, joined map[string]bool) (wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	live := map[string]bool{}
	for i := range leases {
		l := &leases[i]
		namespace, name, uid, ok := claims.ClaimOf(l)
		if !ok {
			continue
		}
		live[l.Engine.Key] = true
		for _, p := range f.Pods.Of(namespace, name) {
			if p.Over || joined[l.Engine.Key+" "+string(p.UID)] {
				continue
			}
			cgroup := f.Cgroups.Cgroup(p.UID)
			if cgroup == "" {
				wait = joinInterval
				continue
			}
			if !slices.Contains(l.Engine.Cgroups, cgroup) {
				c, err := f.Claim(ctx, namespace, name)
				if err == nil && !claims.ReservedFor(c, uid, p.UID) {
					continue // It is another claim of this name, or is not reserved for it yet: then its status changes.
				}
				if err == nil {
					_, err = f.Leases.AttachEngine(ctx, api.EngineRequest{Key: l.Engine.Key, Keep: true, Cgroup: cgroup})
				}
				if err != nil {
					f.Log.Warn("a pod does not join the lease of its claim", "claim", name, "pod", p.Name, "lease", l.ID, "error", err)
					wait = retry
					continue
				}
				f.Log.Info("a pod joins the lease of its claim", "claim", name, "pod", p.Name, "lease", l.ID)
			}
			joined[l.Engine.Key+" "+string(p.UID)] = true
		}
		if !f.report(ctx, l) {
			wait = max(wait, retry)
		}
	}
	for key := range joined {
		if !slices.ContainsFunc(leases, func(l api.Lease) bool { return l.Engine != nil && isOf(key, l.Engine.Key) }) {
			delete(joined, key)
		}
	}
	if f.reportEnded(ctx) {
		wait = max(wait, retry)
	}
	return wait
}

// isOf reports whether an entry of joined is of a key.
func isOf(entry, key string) bool { return len(entry) > len(key) && entry[:len(key)+1] == key+" " }

// report writes why the processes of a lease were ended into the status of its pods. It is false if that has to be tried again.
func (f *Follower) report(ctx context.Context, l *api.Lease) bool {
	namespace, name, _, ok := claims.ClaimOf(l)
	if !ok || l.Engine.EndedAt == nil || l.Reason == "" {
		return true
	}
	done := true
	for _, p := range f.Pods.Of(namespace, name) {
		if p.Created.After(*l.Engine.EndedAt) {
			continue // It came later.
		}
		if err := f.Reporter.Report(ctx, &p, "gpushare ended its processes that used the GPU: "+l.Reason, *l.Engine.EndedAt); err != nil {
			f.Log.Warn("the status of a pod does not say why it was ended", "pod", namespace+"/"+p.Name, "error", err)
			done = false
		}
	}
	return done
}

// reportEnded does that for leases that were released. It reports whether some are left.
func (f *Follower) reportEnded(ctx context.Context) (left bool) {
	f.mu.Lock()
	list := f.ended
	f.ended = nil
	f.mu.Unlock()
	list = slices.DeleteFunc(list, func(e endedLease) bool { return time.Now().After(e.until) || f.report(ctx, &e.lease) })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(list, f.ended...)
	return len(f.ended) > 0
}
