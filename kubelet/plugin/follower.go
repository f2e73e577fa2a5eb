package plugin

import (
	"context"
	"errors"
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
	tries := attempts{}
	for ctx.Err() == nil {
		n, changed := f.Publisher.Last()
		wait := time.Duration(0)
		if n != nil {
			wait = f.pass(ctx, time.Now(), n.Status.Leases, tries)
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
func (f *Follower) pass(ctx context.Context, now time.Time, leases []api.Lease, tries attempts) (wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	for i := range leases {
		l := &leases[i]
		namespace, name, _, ok := claims.ClaimOf(l)
		if !ok {
			continue
		}
		for _, p := range f.Pods.Of(namespace, name) {
			wait = sooner(wait, f.join(ctx, now, l, &p, tries))
		}
		wait = sooner(wait, f.report(ctx, now, l, tries))
	}
	wait = sooner(wait, f.reportEnded(ctx, now, tries))
	tries.forget()
	return wait
}

// errNotReserved is of a pod that uses another claim of this name, or one that is not reserved for it yet.
var errNotReserved = errors.New("the claim is not reserved for it")

// join lets a pod join the lease of its claim, and returns after which time that has to be tried again; 0: after a change.
func (f *Follower) join(ctx context.Context, now time.Time, l *api.Lease, p *pods.Pod, tries attempts) (wait time.Duration) {
	namespace, name, uid, _ := claims.ClaimOf(l)
	if p.Over {
		return 0
	}
	try := tries.of("join " + l.Engine.Key + " " + string(p.UID))
	cgroup := f.Cgroups.Cgroup(p.UID)
	switch {
	case cgroup == "" && p.Deleted:
		return 0 // The kubelet starts nothing of it any more.
	case cgroup == "":
		return joinInterval
	case slices.Contains(l.Engine.Cgroups, cgroup):
		return 0
	case try.after(now) > 0:
		return try.after(now)
	}
	c, err := f.Claim(ctx, namespace, name)
	if err == nil && !claims.ReservedFor(c, uid, p.UID) {
		try.tried(now, errNotReserved)
		return try.after(now)
	}
	if err == nil {
		_, err = f.Leases.AttachEngine(ctx, api.EngineRequest{Key: l.Engine.Key, Keep: true, Cgroup: cgroup})
	}
	log := try.tried(now, err)
	switch {
	case err != nil && log:
		f.Log.Warn("a pod does not join the lease of its claim", "claim", name, "pod", p.Name, "lease", l.ID, "error", err)
	case log:
		f.Log.Info("a pod joins the lease of its claim", "claim", name, "pod", p.Name, "lease", l.ID)
	}
	return try.after(now)
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
		try := tries.of("report " + string(p.UID) + " " + message)
		if after := try.after(now); after > 0 {
			wait = sooner(wait, after)
			continue
		}
		err := f.Reporter.Report(ctx, &p, message, *l.Engine.EndedAt)
		if err == nil {
			continue
		}
		if try.tried(now, err) {
			f.Log.Warn("the status of a pod does not say why it was ended", "pod", namespace+"/"+p.Name, "error", err)
		}
		wait = sooner(wait, try.after(now))
	}
	return wait
}

// reportEnded does that for leases that were released.
func (f *Follower) reportEnded(ctx context.Context, now time.Time, tries attempts) (wait time.Duration) {
	f.mu.Lock()
	list := f.ended
	f.ended = nil
	f.mu.Unlock()
	list = slices.DeleteFunc(list, func(e endedLease) bool {
		if now.After(e.until) {
			return true
		}
		after := f.report(ctx, now, &e.lease, tries)
		wait = sooner(wait, after)
		return after == 0
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(list, f.ended...)
	return wait
}
