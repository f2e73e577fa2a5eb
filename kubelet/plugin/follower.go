package plugin

import (
	"context"
	"log/slog"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/pods"
)

// Follower does what the kubelet does not ask for: a further pod of a claim joins its lease, a claim whose lease has ended loses its
// devices, and pods say what gpushared did with them. A lease whose claim is not there any more is released.
type Follower struct {
	Publisher *Publisher
	Leases    claims.Leases
	Cgroups   claims.Pods
	Pods      *pods.Watch
	Reporter  *pods.Reporter
	Claims    *claims.Preparer
	// Claim reads a claim from the API server.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	Log   *slog.Logger

	mu      locks.Mutex[locks.Leaf] // guards what follows
	ended   []endedLease
	notices []notice
	wake    chan struct{} // of the reports; nil: they do not run
}

// followTimeout limits one pass.
const followTimeout = 30 * time.Second

// Run follows until ctx ends. What is written to the API server keeps no pod from its lease: a goroutine of its own does that, and another
// one releases the leases without a claim.
func (f *Follower) Run(ctx context.Context) {
	wake := make(chan struct{}, 1)
	f.mu.Lock()
	f.wake = wake
	f.mu.Unlock()
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { f.each(ctx, wake, f.reports) })
	loops.Go(func() { f.releaseOrphans(ctx) })
	f.each(ctx, f.Pods.Changed(), func(ctx context.Context, now time.Time, leases []api.Lease, tries attempts) time.Duration {
		f.ringReports() // The pods may be those of a report.
		f.removeEnded(ctx, leases)
		return f.joins(ctx, now, leases, tries)
	})
}

// pass does what is due for all leases, and returns after which time something is due again at the latest; 0: after a change.
type pass func(ctx context.Context, now time.Time, leases []api.Lease, tries attempts) (wait time.Duration)

// each makes a pass when the node was read, after wake, and when something is due, until ctx ends.
func (f *Follower) each(ctx context.Context, wake <-chan struct{}, do pass) {
	tries := attempts{}
	for ctx.Err() == nil {
		n, changed := f.Publisher.Last()
		wait := time.Duration(0)
		if n != nil {
			limited, cancel := context.WithTimeout(ctx, followTimeout)
			wait = do(limited, time.Now(), n.Status.Leases, tries)
			cancel()
		}
		var later <-chan time.Time
		if wait > 0 {
			later = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-wake:
		case <-later:
		}
	}
}

func (f *Follower) ringReports() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// removeEnded removes the files of claims whose leases have ended, and says so to their pods.
func (f *Follower) removeEnded(ctx context.Context, leases []api.Lease) {
	if f.Claims == nil {
		return
	}
	ended, err := f.Claims.RemoveEnded(ctx, leases)
	if err != nil && ctx.Err() == nil {
		f.Log.Warn("the CDI files of claims without a lease are not all removed", "error", err)
	}
	for i := range ended {
		f.noticeEnded(ctx, &ended[i])
	}
}
