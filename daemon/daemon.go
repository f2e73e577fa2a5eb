package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/daemon/account"
	"github.com/gpushare/gpushare/daemon/acknowledge"
	"github.com/gpushare/gpushare/daemon/adoption"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/change"
	"github.com/gpushare/gpushare/daemon/converge"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/enforce"
	"github.com/gpushare/gpushare/daemon/engines"
	"github.com/gpushare/gpushare/daemon/escape"
	"github.com/gpushare/gpushare/daemon/fronting"
	"github.com/gpushare/gpushare/daemon/health"
	"github.com/gpushare/gpushare/daemon/host"
	"github.com/gpushare/gpushare/daemon/instances"
	"github.com/gpushare/gpushare/daemon/instanceuse"
	"github.com/gpushare/gpushare/daemon/leases"
	"github.com/gpushare/gpushare/daemon/lostfiles"
	"github.com/gpushare/gpushare/daemon/maintenance"
	"github.com/gpushare/gpushare/daemon/metrics"
	"github.com/gpushare/gpushare/daemon/mps/bypass"
	"github.com/gpushare/gpushare/daemon/outside"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/settings"
	"github.com/gpushare/gpushare/daemon/specs"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/status"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/daemon/unmanage"
	"github.com/gpushare/gpushare/internal/kernel/kernellog"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps/control"
)

// Daemon is one running gpushared. Its fields are set by build and not changed afterwards.
type Daemon struct {
	*report.Reporter
	settings settings.Settings
	state    *state.State
	tasks    *loop.Group
	live     liveSettings
	notify   notifier
	release  func() error // returns memory that is not used to the kernel; nil: it is not returned

	driver       driver
	observer     *observe.Observer
	host         *host.Host // the adapters of the host
	table        *lease.Table
	wakeConverge func() // wakes the converge loop

	identities  *server.Identities
	server      *server.Server
	front       *fronting.Front // nil: the server reads everybody
	attribution *attribution.Attribution
	stopper     *stop.Stopper
	policy      *devicepolicy.Policy
	bypass      *bypass.Search
	controls    *control.Supervisor // of MPS control daemons
	specs       *specs.Specs
	changes     *change.Changes
	unmanaging  *unmanage.Unmanaging
	instances   *instances.Instances
	converger   *converge.Converger
	leases      *leases.Leases
	adopter     *adoption.Adopter
	engines     *engines.Engines
	enforcer    *enforce.Enforcer
	escapes     *escape.Escapes

	// These write down what administrators ask for, or ask for later.
	account      *account.Account
	outside      *outside.Watch
	instanceUse  *instanceuse.Watch
	acknowledged *acknowledge.Acknowledgements
	health       *health.Health
	kernelLog    *kernellog.Log
	maintenance  *maintenance.Maintenance

	// These only read: for users, for Prometheus, and for dcgm-exporter.
	files   *lostfiles.Files
	socket  *server.Socket // nil: none is served
	viewer  *status.Viewer
	metrics *metrics.Exporter
	network *metrics.Network // nil: the settings have no address
	jobs    *metrics.JobFiles
}

// liveSettings are those that a reload changes.
type liveSettings struct {
	level  *slog.LevelVar
	tuning *atomic.Pointer[settings.Tuning]
}

// requestsAtStop is how long a stop waits for requests that run: a stop of the service takes at most 2 s.
const requestsAtStop = 1500 * time.Millisecond

// eventsAtStart is how long the daemon is not ready because the events of the driver are not followed yet.
const eventsAtStart = 2 * time.Second

// notifier reports the state of the daemon to the service manager.
type notifier interface {
	Ready() error
	Status(text string) error
	Stopping() error
	Watchdog() error
	WatchdogInterval() time.Duration
}

// answering is a service manager whose watchdog is fed only if requests are answered: its own is one of root's.
type answering struct {
	notifier
	answers func(context.Context) error
}

func (a answering) Watchdog() error {
	ctx, cancel := context.WithTimeout(context.Background(), a.WatchdogInterval()/2)
	defer cancel()
	if err := a.answers(ctx); err != nil {
		return err
	}
	return a.notifier.Watchdog()
}

// Run runs the daemon until ctx ends. It reports that it is ready when its settings are valid, its state is loaded, the
// inventory is done, the open change is resumed or undone, and the first converge is planned.
func Run(ctx context.Context, s settings.Settings, log *slog.Logger, level *slog.LevelVar) error {
	d, err := build(ctx, s, log, level, realEnvironment())
	if err != nil {
		return err
	}
	defer d.close()
	return d.run(ctx)
}

func (d *Daemon) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.tasks.Begin(ctx)
	l, err := d.listen()
	if err != nil {
		return err
	}
	capped, err := server.NewCappedListener(l, d.identities.HasRole)
	if err != nil {
		return err
	}
	scraped, err := d.listenForScrapes(ctx)
	if err != nil {
		return err
	}
	d.begin(ctx)
	serving := d.server.NewServing(ctx)
	fronted, endFront := context.WithCancel(context.WithoutCancel(ctx)) // Requests end before it.
	defer endFront()
	if d.front != nil {
		d.tasks.Go(func() { d.front.Run(fronted) })
	}
	d.serveAgain(serving) // before the first request, which may ask for the files
	failed := make(chan error, 1)
	d.tasks.Go(func() { failed <- serving.Serve(capped) })
	d.tasks.Go(func() { d.converger.Run(ctx) })
	d.tasks.Go(func() { d.controls.Watch(ctx, d.wakeConverge) })
	if f := d.host.Freezer; f != nil {
		d.tasks.Go(func() {
			f.Run(ctx, func(err error) { d.Log.Error("cannot keep leases frozen", "error", err) })
		})
	}
	d.tasks.Go(func() { d.enforcer.Run(ctx) })
	d.tasks.Go(func() { d.instances.Run(ctx) })
	d.tasks.Go(func() { d.escapes.Run(ctx) })
	d.tasks.Go(func() { d.bypass.Run(ctx) })
	d.tasks.Go(func() { d.adopter.Run(ctx) })
	d.tasks.Go(func() { d.engines.Run(ctx) })
	d.tasks.Go(func() { d.leases.Run(ctx) })
	d.tasks.Go(func() { d.account.Run(ctx) })
	d.tasks.Go(func() { d.outside.Run(ctx) })
	d.tasks.Go(func() { d.instanceUse.Run(ctx) })
	d.tasks.Go(func() { d.health.Run(ctx) })
	d.tasks.Go(func() { d.acknowledged.Run(ctx) })
	d.tasks.Go(func() { d.maintenance.Run(ctx) })
	d.tasks.Go(func() { d.identities.Run(ctx) })
	d.tasks.Go(func() { d.policy.Run(ctx) })
	d.tasks.Go(func() { d.RunAudit(ctx) })
	d.tasks.Go(func() { d.jobs.Run(ctx) })
	if scraped != nil {
		d.tasks.Go(func() { d.network.Run(ctx, scraped) })
	}
	if d.converger.AwaitEvents(ctx, eventsAtStart) {
		d.Log.Warn("the driver does not report events yet: an XID that comes now may be missing")
	}
	if err := d.notify.Ready(); err != nil {
		d.Log.Warn("cannot report to the service manager that the daemon is ready", "error", err)
	}
	d.Log.Info(
		"ready", "message_id", report.MessageReady, "socket", d.settings.Socket, "adapter",
		devicepolicy.AdapterText(d.host.Port.Info()), "gpus", len(d.observer.Last().GPUs),
	)
	if d.release != nil { // What the start used.
		d.tasks.Go(func() { d.returnMemory(ctx) })
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("cannot serve: %w", err)
	}
	d.Log.Info("stopping", "message_id", report.MessageStopping)
	_ = d.notify.Stopping() // It exits with or without it.
	stop()
	d.enforcer.Shares.ThawAll()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestsAtStop)
	defer cancel()
	if e := serving.Shutdown(end); e != nil {
		_ = serving.Close() // Requests that wait are cut off: their callers send them again.
	}
	endFront()
	d.tasks.Wait()
	return err
}

// begin observes the node, restores the leases of the previous run, and resumes or undoes its open change.
func (d *Daemon) begin(ctx context.Context) {
	// Not when it is followed: an XID that comes while the daemon starts must be read, too. Health reports why it cannot be read.
	_ = d.kernelLog.Begin()
	first, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	d.maintenance.Begin(first)
	d.observer.Observe(first)
	d.specs.Load()
	d.observer.Expect()
	d.account.Load()
	if err := d.enforcer.Tenants.Load(); err != nil {
		d.Conditions.Set(
			"state", "frozen-tenants", err.Error(),
			"see which are frozen with 'gpushare tenant list', and freeze the others again with 'gpushare tenant freeze'",
		)
		d.Log.Error("cannot freeze tenants again", "error", err)
	}
	d.renamed(d.state.Stored().Renames, d.state.Desired(), func() {})
	// To restore the leases has no deadline: the time of the observation must not be missing here.
	if err := d.leases.Restore(ctx); err != nil {
		d.Conditions.Set(
			"state", "leases", "the leases of the previous daemon cannot be read: "+err.Error(),
			"their processes continue to run, without shares and quotas",
		)
		d.Log.Error("cannot restore the leases", "error", err)
	}
	d.account.Recover()
	d.changes.Resume(first)
	d.specs.ApplyChangedFile(first)
	changed := d.policy.EnsureNodes(ctx, d.observer.Last()) // before the first lease
	last, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	if changed {
		d.observer.Observe(last)
	}
	d.converger.Refresh(last, d.observer.Last())
	d.wakeConverge() // Restore now what a boot removed, without waiting for the timer.
}

func (d *Daemon) close() {
	if err := d.driver.Close(); err != nil {
		d.Log.Warn("cannot close the driver", "error", err)
	}
	d.host.Close()
	d.Reporter.Close()
	if err := d.state.Store.Close(); err != nil {
		d.Log.Warn("cannot close the state", "error", err)
	}
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return h
}
