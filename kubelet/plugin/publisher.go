package plugin

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// Times of the publisher.
const (
	// calm is waited after an event, so that the events of one change are one publication.
	calm = 200 * time.Millisecond
	// spacing is the least time between two readings of the node.
	spacing = 500 * time.Millisecond
	// moment is when it is read once more after an event: what was said may be in the status a moment later.
	moment = 2 * time.Second
	// unasked is how often the node is read without an event: what changes without one is seen then.
	unasked = 10 * time.Second
	// retry is the pause before gpushared is asked again that did not answer.
	retry = time.Second
	// readTimeout limits one reading.
	readTimeout = 30 * time.Second
)

// Publisher publishes the node whenever it has changed.
type Publisher struct {
	Node   *Node
	Pool   string
	Log    *slog.Logger
	Submit func(ctx context.Context, r resourceslice.DriverResources) error
	// Before are the slices of this node that the API server has; nil: they are not read. It is called before the first submission that
	// needs them.
	Before func(ctx context.Context) ([]resourceapi.ResourceSlice, error)

	mu     locks.Mutex[locks.Leaf] // guards what follows
	last   *publish.Node
	readAt time.Time // when it was read

	dropped []string        // the features of Kubernetes without which nothing is published
	wake    chan<- struct{} // of Run; nil: it does not run

	// What follows is of Run alone.
	before    []resourceapi.ResourceSlice // what Before has returned
	memory    publish.Memory
	published *resourceslice.DriverResources
	logged    string        // what fails each second is in the log when it changes
	changed   chan struct{} // closed and replaced when last is
}

// Last is the node as it was read last, and a channel that is closed when it is read again. It is nil before the first reading.
func (p *Publisher) Last() (*publish.Node, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.last, p.changed
}

// Age is how long ago the node was read last.
func (p *Publisher) Age() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.readAt)
}

func (p *Publisher) store(n *publish.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.readAt = n, time.Now()
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
}

// Run publishes until ctx ends. While gpushared does not answer, what was published stays: nothing can be prepared then.
func (p *Publisher) Run(ctx context.Context) {
	wake := make(chan struct{}, 1)
	p.mu.Lock()
	p.wake = wake
	p.mu.Unlock()
	var loops sync.WaitGroup
	loops.Go(func() { p.follow(ctx, wake) })
	defer loops.Wait()
	woken := false
	for ctx.Err() == nil {
		next := p.pass(ctx, woken)
		sleep(ctx, spacing, nil)
		woken = sleep(ctx, next, wake)
		sleep(ctx, calm, nil)
		select { // The events of that time are of what is read now.
		case <-wake:
		default:
		}
	}
}

// pass reads the node and publishes it if it has changed. It returns after which time it is read again if no event comes.
func (p *Publisher) pass(ctx context.Context, woken bool) (next time.Duration) {
	next = unasked
	if woken {
		next = moment
	}
	r, wait, err := p.read(ctx)
	if wait > 0 {
		next = min(next, wait)
	}
	switch {
	case err != nil:
		if ctx.Err() == nil && p.logged != err.Error() {
			p.Log.Warn("the node is not read", "error", err)
		}
		p.logged = err.Error()
		return retry
	case r == nil:
		if p.logged != starting {
			p.Log.Info("the node is not published yet", "reason", starting)
		}
		p.logged = starting
		return moment
	case p.published != nil && equality.Semantic.DeepEqual(p.published, r):
		if p.logged != "" {
			p.Log.Info("the node is read again")
		}
		p.logged = ""
		return next
	}
	if err := p.Submit(ctx, *r); err != nil {
		if p.logged != err.Error() {
			p.Log.Error("the node is not published", "error", err)
		}
		p.logged = err.Error()
		return retry
	}
	p.published, p.logged = r, ""
	p.Log.Info("the node is published", "devices", countOf(r))
	return next
}

// starting is why nothing is published yet.
const starting = "gpushared has not read the GPUs since it started"

// read reads the node, and returns what is to be published of it. It is nil while gpushared has not read the GPUs since it started, as at a
// boot at which the driver comes late: what was published stays.
func (p *Publisher) read(ctx context.Context) (r *resourceslice.DriverResources, wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	n, err := p.Node.Read(ctx)
	if err != nil {
		return nil, 0, err
	}
	unread := slices.ContainsFunc(n.Status.GPUs, func(g api.GPUStatus) bool { return n.Unread(&g) })
	if unread && p.before == nil && p.Before != nil {
		if p.before, err = p.Before(ctx); err != nil {
			return nil, 0, err
		}
	}
	n.Before = p.before
	p.store(n)
	if n.Status.Node.Starting {
		return nil, 0, nil
	}
	if p.incomplete() {
		none := publish.Nothing(p.Pool)
		return &none, 0, nil
	}
	all, wait := p.memory.Resources(n, p.Pool, time.Now())
	return &all, wait, nil
}

// Dropped withdraws all devices until the program is started again: the API server has dropped fields of them, because it lacks the
// features. Without counters the scheduler would grant what is not there.
func (p *Publisher) Dropped(features []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropped == nil {
		p.Log.Error(
			"nothing is published: the API server drops fields of the devices; enable these features in it, the scheduler and the kubelet, "+
				"then start gpushare-kubelet again",
			"features",
			features,
		)
	}
	p.dropped = append([]string{}, features...)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Publisher) incomplete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped != nil
}

// follow wakes the publisher for each event of gpushared, and when the stream begins: what happened before it is not in it.
func (p *Publisher) follow(ctx context.Context, wake chan<- struct{}) {
	ring := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	for ctx.Err() == nil {
		ring()
		err := p.Node.Daemon.Events(ctx, func(e api.Event) {
			if e.Kind != "alive" {
				ring()
			}
		})
		if err != nil && ctx.Err() == nil {
			p.Log.Debug("the events of gpushared are not read", "error", err)
		}
		sleep(ctx, retry, nil)
	}
}

// sleep waits, or less until ctx ends or wake, which it reports.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) (woken bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
		return true
	case <-t.C:
	}
	return false
}

func countOf(r *resourceslice.DriverResources) int {
	n := 0
	for _, pool := range r.Pools {
		for i := range pool.Slices {
			n += len(pool.Slices[i].Devices)
		}
	}
	return n
}
