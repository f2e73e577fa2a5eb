package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/ledger"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// Daemon is one running gpushared. Fields above the blank lines are set by New and not changed after.
type Daemon struct {
	settings Settings
	log      *slog.Logger
	level    *slog.LevelVar
	now      func() time.Time
	host     string

	store    *store.Store
	driver   driver
	observer *observe.Observer
	port     cgroup.Port       // what holds processes
	follow   *cgroup.Processes // what follows them where nothing may be written
	visitors *cgroup.Visitors  // for those that stay in a cgroup that is not ours
	gate     cgroup.Gate       // freezes only while somebody else could thaw; nil where nothing can be frozen
	guard    *cgroup.Guard
	logins   *loginGuard              // keeps logins from managed GPUs
	adopted  atomic.Pointer[[]string] // the cgroups of units that run and that the spec adopts; nil: not known yet
	audits   *ledger.Ledger
	mps      *mps.Supervisor
	engine   *engine.Engine
	table    *lease.Table
	notify   notifier

	books    books    // who is logged in and where units run; nil where nobody can tell
	services services // stops units and starts them; nil where nobody can

	lost        bool // what an earlier life kept could not be read
	closeHolder func()
	visiting    sync.Mutex // one look and one start of a visitor at a time
	victims     victims
	containers  containers
	cdi         cdi
	dynamic     dynamic

	tuning     atomic.Pointer[tuning]
	desired    atomic.Pointer[desired]
	rosters    rosters
	turns      turns
	events     *broker
	operations *operations
	watchers   watchers
	departures departures
	leavers    leavers
	adoption   adoption
	perLogin   loginLimits // under the adoption's lock, but for what is shown
	hosts      hosts
	unseen     unseen
	programs   programs
	pending    pending
	endings    endings
	samples    samples
	shares     shares
	page       page
	walls      atomic.Pointer[wanted]
	rates      rates
	drift      drift
	sight      sight
	conditions conditions
	counters   counters

	applyMu  sync.Mutex                 // one plan that may become a change at a time
	mendMu   sync.Mutex                 // no change begins while the converge loop mends
	changing atomic.Pointer[openChange] // the change under way
	// settledAt is the observation with which the last change ended: what older ones lack was not taken by others.
	settledAt atomic.Uint64
	kicks     chan struct{}
	timeWake  chan struct{} // a lease began or ended: whose time is up next may be another
	notices   chan told     // on their way to terminals

	// ctx ends with Run; goroutines are waited for there.
	ctx        context.Context
	goroutines sync.WaitGroup
}

// notifier tells the service manager how the daemon fares.
type notifier interface {
	Ready() error
	Status(text string) error
	Stopping() error
	Watchdog() error
}

// Run runs the daemon until ctx ends. It is ready, and says so, when its settings are valid, its state is loaded, the
// inventory is done, the open change is settled and the first converge is planned.
func Run(ctx context.Context, s Settings, log *slog.Logger, level *slog.LevelVar) error {
	d, err := build(ctx, s, log, level, host())
	if err != nil {
		return err
	}
	defer d.close()
	return d.run(ctx)
}

func (d *Daemon) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.ctx = ctx
	l, err := d.listen()
	if err != nil {
		return err
	}
	d.begin(ctx)
	server := d.newServer(ctx)
	failed := make(chan error, 1)
	d.goroutines.Go(func() { failed <- server.Serve(newCappedListener(l, d.rosters.known)) })
	d.goroutines.Go(func() { d.convergeLoop(ctx) })
	d.goroutines.Go(func() { d.sampleLoop(ctx) })
	d.goroutines.Go(func() { d.dynamicLoop(ctx) })
	d.goroutines.Go(func() { d.leaverLoop(ctx) })
	d.goroutines.Go(func() { d.adoptLoop(ctx) })
	d.goroutines.Go(func() { d.unattributedLoop(ctx) })
	d.goroutines.Go(func() { d.eventLoop(ctx) })
	d.goroutines.Go(func() { d.timeLoop(ctx) })
	d.goroutines.Go(func() { d.noticeLoop(ctx) })
	d.goroutines.Go(func() { d.nameLoop(ctx) })
	d.goroutines.Go(func() { d.containerLoop(ctx) })
	if err := d.notify.Ready(); err != nil {
		d.log.Warn("cannot tell the service manager that the daemon is ready", "error", err)
	}
	d.log.Info("ready", "socket", d.settings.Socket, "adapter", d.adapterText(), "gpus", len(d.observer.Last().GPUs))
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("cannot serve: %w", err)
	}
	_ = d.notify.Stopping() // Nobody listens, or it is told.
	stop()
	d.shares.thawAll(d)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if e := server.Shutdown(end); e != nil {
		_ = server.Close() // Long waits are cut: their callers ask again.
	}
	d.goroutines.Wait()
	return err
}

// begin observes, settles what an earlier life left, and finds its leases again.
func (d *Daemon) begin(ctx context.Context) {
	first, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	node := d.observer.Observe(first)
	d.adoptSpec(node)
	if err := d.restoreLeases(first); err != nil {
		d.conditions.set("state", "leases", "the leases of the earlier daemon cannot be read: "+err.Error(), "its processes run on without shares and quotas; they end as they will")
		d.log.Error("cannot restore the leases", "error", err)
	}
	d.settle(first)
	d.firstSpec(first)
	d.refresh(first, d.observer.Last())
	d.kick() // What a boot took away is restored now, and not when the timer comes round.
}

// stopping tells whether the daemon is told to end.
func (d *Daemon) stopping() bool { return d.ctx != nil && d.ctx.Err() != nil }

func (d *Daemon) close() {
	if err := d.driver.Close(); err != nil {
		d.log.Warn("cannot close the driver", "error", err)
	}
	d.closeHolder()
	d.closeAudit()
	if err := d.store.Close(); err != nil {
		d.log.Warn("cannot close the state", "error", err)
	}
}

// kick makes the converge loop look now.
func (d *Daemon) kick() {
	select {
	case d.kicks <- struct{}{}:
	default: // One look is due already.
	}
}

func (d *Daemon) adapterText() string {
	i := d.port.Info()
	if i.Detail == "" {
		return i.Adapter
	}
	return i.Adapter + " (" + i.Detail + ")"
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return h
}
