package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/ledger"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/systemd"
)

// ErrNewerState says that the state was written by a newer version: restarting does not help (exit 78).
var ErrNewerState = store.ErrNewerFormat

// NewLogger logs to the journal when the daemon runs under systemd, else as text. The level can be changed later.
func NewLogger(s Settings, errs io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := &slog.LevelVar{}
	_ = level.UnmarshalText([]byte(s.LogLevel)) // An unknown word is info; LoadSettings has refused it before.
	return slog.New(systemd.LogHandler(errs, level)), level
}

// outside is what a daemon reaches for outside of its process, beside files: what holds processes, and the GPUs.
type outside struct {
	hold  func(context.Context, Settings, *slog.Logger, heard) (*holder, error)
	drive func(Settings, *holder, *slog.Logger) (driver, error)
}

// driver is the GPUs behind the worker, and how the worker fares.
type driver interface {
	gpu.Driver
	Retry(ctx context.Context, id gpu.UUID) error
	Status() worker.Status
	Stats() worker.Stats
}

// host is what a daemon finds outside on a real host, and with the virtual driver.
func host() outside {
	return outside{hold: holdProcesses, drive: func(s Settings, h *holder, log *slog.Logger) (driver, error) {
		return worker.New(worker.Options{
			Command: []string{s.Worker}, Env: workerEnv(), RunDir: s.RunDir, Library: s.Library, HostRoot: s.HostRoot, Launcher: h.launcher, Log: log,
			Deadlines: deadlines(time.Duration(s.Answers), time.Duration(s.Changes)),
		})
	}}
}

// build makes the daemon with everything that it is composed of. What fails takes back what was made before it.
func build(ctx context.Context, s Settings, log *slog.Logger, level *slog.LevelVar, out outside) (d *Daemon, err error) {
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()
	notify, err := systemd.NewNotifier()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.RunDir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the run directory: %w", err)
	}
	st, damage, err := store.Open(s.StateDir)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = st.Close() }) // The error that is returned says more.
	d = &Daemon{
		Reporter: NewReporter(log, time.Now), settings: s, level: level, notify: notify,
		state: NewState(st, damage.Lost), tasks: &loop.Group{}, tuning: new(atomic.Pointer[tuning]),
	}
	d.Generation = func() uint64 { return d.state.Desired().generation }
	d.tuning.Store(tuningOf(s))
	d.noteState(damage)
	if d.state.Lost { // Something may stand, and nobody knows what: so it is said until the node is given back.
		if err := st.Update(func(s *store.State) error { s.Standing = true; return nil }); err != nil {
			log.Error("cannot record that something may stand", "error", err)
		}
	}
	if d.Audits, err = ledger.Open(filepath.Join(s.StateDir, "audit"), "audit", ledger.Options{}); err != nil {
		return nil, err
	}
	undo = append(undo, func() { d.Reporter.close() })
	kicks, adoptions := loop.NewWake(), loop.NewWake()
	d.kick = kicks.Set
	rosters := newRosters(s.Getent)
	h, err := out.hold(ctx, s, log, heard{
		reloaded: func() { d.kick(); adoptions.Set() },
		logins:   adoptions.Set,
		userName: rosters.names.UserName,
		unit: func(name string) {
			if d.state.Desired().adopts(name) {
				adoptions.Set()
			}
		},
	})
	if err != nil {
		return nil, err
	}
	undo = append(undo, h.close)
	d.port, d.closeHolder = h.port, h.close
	d.driver, err = out.drive(s, h, log)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = d.driver.Close() })
	supervisor := &mps.Supervisor{Units: h.units, Control: s.MPSControl, RunDir: filepath.Join(s.RunDir, "mps"), Log: log, Now: time.Now}
	d.observer = &observe.Observer{Driver: d.driver, Slices: d.port, MPS: supervisor, Guards: h.logins, HostRoot: s.HostRoot, Now: time.Now}
	d.compose(h, supervisor, rosters, kicks, adoptions)
	return d, nil
}

// compose makes the managers and tells each of those that it needs. Nothing is started.
func (d *Daemon) compose(h *holder, supervisor *mps.Supervisor, who *rosters, kicks, adoptions loop.Wake) {
	s, run := d.settings, store.RunDir(d.settings.RunDir)
	engine := &engine.Engine{Log: d.Log, Now: time.Now}
	// The table asks walls that are made after it, because they ask the table.
	inside := &walls{}
	departures := &departures{}
	d.table = lease.New(lease.Config{
		Walls: inside, Rooms: rooms{},
		Save:    func(ctx context.Context, state []byte) error { return d.leases.saveLeases(ctx, state) },
		Noticed: func(l lease.Lease, n lease.Notice) { d.leases.noticed(l, n) },
		Changed: func(l lease.Lease) { d.leaseChanged(l) },
		Wanted:  func() { d.changes.dynamic.poke() },
	})
	gate, ready := cgroup.Gate(nil), func() error { return nil } // Where nothing can be frozen at all that is said elsewhere.
	if h.guard != nil {
		gate, ready = h.guard, h.guard.Ready
	}
	recent := observe.NewSamples()
	hosts := &isolation.HostCache{Root: s.HostRoot}
	sampling := func() time.Duration { return d.tuning.Load().sample }
	var units unitFinder // A nil adapter must stay a nil interface.
	if h.books != nil {
		units = h.books
	}
	var watched unitState
	if h.services != nil {
		watched = h.services
	}
	workerPID := func() int { return d.driver.Status().PID }
	d.identities = &Identities{Reporter: d.Reporter, spec: func() *api.Spec { return d.state.Desired().spec }, tasks: d.tasks, rosters: who, changed: adoptions.Set}
	d.server = &Server{Reporter: d.Reporter, tasks: d.tasks, rosters: who, named: d.identities.kickNames}
	d.attribution = &Attribution{
		Reporter: d.Reporter, hostRoot: s.HostRoot, state: d.state, port: h.port, follow: h.follow, visitors: h.visitors, workerPID: workerPID,
		observer: d.observer, table: d.table, stopsUnits: h.services != nil, hosts: hosts,
	}
	d.policy = &Policy{
		Reporter: d.Reporter, hostRoot: s.HostRoot, cdiDir: s.CDIDir, state: d.state, port: h.port, observer: d.observer, table: d.table, logins: h.logins,
		mps: supervisor, hosts: hosts, sliceUse: d.attribution.sliceUse, cdi: cdi{wake: loop.NewWake()},
	}
	d.stopper = &Stopper{Reporter: d.Reporter, driver: d.driver, table: d.table, attribution: d.attribution, departures: departures}
	d.escapes = &Escapes{
		Reporter: d.Reporter, state: d.state, driver: d.driver, observer: d.observer, port: h.port, table: d.table, samples: recent,
		units: units, workerPID: workerPID, sampleInterval: sampling, attribution: d.attribution, leavers: leavers{wake: loop.NewWake(), since: time.Now()},
	}
	d.leases = &Leases{
		Reporter: d.Reporter, state: d.state, runDir: run, tasks: d.tasks, workerPID: workerPID, observer: d.observer, port: h.port,
		follow: h.follow, visitors: h.visitors, table: d.table, rosters: who, kick: d.kick, attribution: d.attribution, stopper: d.stopper,
		policy: d.policy, escapes: d.escapes, departures: departures, notices: make(chan told, noticeQueue), programs: h.programs,
		timeWake: loop.NewWake(), watchers: watchers{seen: map[string]bool{}},
	}
	inside.d = d.leases
	d.adopter = &Adopter{
		Reporter: d.Reporter, state: d.state, runDir: run, observer: d.observer, port: h.port, visitors: h.visitors, table: d.table,
		rosters: who, books: h.books, sampleInterval: sampling, kick: d.kick, attribution: d.attribution, policy: d.policy, leases: d.leases,
		adoption: adoption{wake: adoptions},
	}
	d.enforcer = &Enforcer{
		Reporter: d.Reporter, state: d.state, tasks: d.tasks, driver: d.driver, observer: d.observer, gate: gate, table: d.table,
		samples: recent, sampleInterval: sampling, attribution: d.attribution, stopper: d.stopper, shares: shares{gpus: map[gpu.UUID]*slicer{}},
	}
	d.changes = &Changes{
		Reporter: d.Reporter, settings: changeSettings{
			HostRoot: s.HostRoot, StateDir: s.StateDir, CDIDir: s.CDIDir, SpecFile: s.SpecFile,
			Answers: time.Duration(s.Answers), Changes: time.Duration(s.Changes),
		}, state: d.state, tasks: d.tasks, port: h.port, driver: d.driver, observer: d.observer,
		engine: engine, table: d.table, services: h.services, logins: h.logins, identities: d.identities,
		attribution: d.attribution, policy: d.policy, stopper: d.stopper, leases: d.leases, adopter: d.adopter, kick: d.kick, dynamic: dynamic{wake: loop.NewWake()},
	}
	d.converger = &Converger{
		Reporter: d.Reporter, state: d.state, driver: d.driver, observer: d.observer, engine: engine, port: h.port, table: d.table,
		notify: d.notify, logins: h.logins, convergeInterval: func() time.Duration { return d.tuning.Load().converge }, kicks: kicks, kick: d.kick, guardReady: ready, identities: d.identities, attribution: d.attribution, policy: d.policy, changes: d.changes,
	}
	d.changes.converger = d.converger
	d.viewer = &Viewer{
		Reporter: d.Reporter, stateDir: s.StateDir, hostRoot: s.HostRoot, host: hostname(), state: d.state, driver: d.driver, observer: d.observer, port: h.port,
		table: d.table, samples: recent, rosters: who, logins: h.logins, limitsLogins: h.books != nil, services: watched, gate: gate, guardReady: ready, attribution: d.attribution, policy: d.policy,
		told: viewed{adoption: d.adopter, converge: d.converger, change: d.changes, enforce: d.enforcer, leases: d.leases},
	}
	d.server.routes = d.routes()
	engine.Handlers, engine.Timeout = d.handlers(supervisor, h.logins), d.changes.stepTimeout
}

// deadlines is what the driver may take for what only reads, and for a change. What is many readings may take the time of
// many, and the MIG mode that of two changes: the GPU may be reset for it.
func deadlines(answers, changes time.Duration) worker.Deadlines {
	return worker.Deadlines{
		Snapshot: answers, Read: answers, Start: 5 * answers, Node: 5 * answers, Profiles: 5 * answers, Change: changes, Mode: 2 * changes,
	}
}

// leaseChanged is told with the table's lock held: it only leaves marks.
func (d *Daemon) leaseChanged(l lease.Lease) {
	if l.State == lease.Gone {
		d.leases.endings.add(l)
		d.escapes.leavers.wake.Set()
		d.adopter.adoption.look() // There may be room now.
	}
	d.leases.departures.tell() // Or it moved on, which some wait for too.
	d.touch()
	d.policy.cdi.poke()
	d.changes.dynamic.poke()
	d.enforcer.samples.Wake.Set()
	d.leases.timeWake.Set()
}

func (d *Daemon) handlers(supervisor *mps.Supervisor, filters *loginGuard) engine.Handlers {
	instances := &mig.Handler{Driver: d.driver, Who: d.attribution.whoUses}
	walls := &isolation.Handler{Slices: d.port}
	control := &mps.Handler{Supervisor: supervisor, Driver: d.driver}
	return engine.Handlers{
		mig.KindMode: instances, mig.KindCreate: instances, mig.KindDestroy: instances,
		isolation.KindSet: walls, isolation.KindRemove: walls,
		isolation.KindGuard: &isolation.GuardHandler{Guards: filters},
		mps.KindStart:       control, mps.KindStop: control,
		KindComputeMode: computeMode{d.driver}, KindLeaseStop: leaseStop{d.changes}, KindLeaseRelease: leaseStop{d.changes},
		KindProcessStop: processStop{d.stopper}, KindUnitStop: quiesceUnit{d.changes}, KindUnitStart: quiesceUnit{d.changes},
		KindCDIRemove: giveBack{d.changes}, KindUnlimit: giveBack{d.changes}, KindAllowMove: giveBack{d.changes}, KindMigration: migrationPolicy{d.changes},
	}
}

// workerEnv is the worker's whole environment. The library reads some variables of its own; ours are not passed.
func workerEnv() []string {
	env := []string{"PATH=/usr/bin:/bin"}
	for _, name := range []string{"LD_LIBRARY_PATH", "GPUSIM_ROOT", "GOMAXPROCS"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// noteState tells what was wrong with the state at start.
func (d *Daemon) noteState(r store.Report) {
	switch {
	case r.Lost:
		d.Conditions.set("state", "lost", "the state could not be read: "+r.Reason, "the node is taken as it is; apply the spec again. The damaged files are kept in "+d.settings.StateDir)
	case r.FellBack:
		d.Conditions.set("state", "fell-back", "the newest state could not be read, the one before it is used: "+r.Reason, "see whether 'gpushare get' is what you expect; the damaged file is kept in "+d.settings.StateDir)
	}
	if r.Reason != "" {
		d.Log.Error("the state was damaged", "reason", r.Reason, "kept", r.Quarantined)
	}
}

// listen takes the socket that the service manager passed, or makes one.
func (d *Daemon) listen() (net.Listener, error) {
	passed := systemd.PassedSockets()
	l, err := passed.Listener("gpushare")
	if left := passed.Close(); len(left) > 0 {
		d.Log.Warn("sockets were passed that nobody knows", "names", left)
	}
	if err != nil || l != nil {
		return l, err
	}
	return listen(d.settings.Socket)
}
