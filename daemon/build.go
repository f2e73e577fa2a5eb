package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/ledger"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/version"
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

func versionText() string { return version.Version }

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
	st, report, err := store.Open(s.StateDir)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = st.Close() }) // The error that is returned says more.
	d = &Daemon{
		settings: s, log: log, level: level, now: time.Now, host: hostname(), store: st, notify: notify,
		operations: &operations{now: time.Now}, kicks: make(chan struct{}, 1),
		timeWake: make(chan struct{}, 1), notices: make(chan told, noticeQueue),
		watchers:   watchers{seen: map[string]bool{}},
		samples:    samples{wake: make(chan struct{}, 1), gpus: map[gpu.UUID]gpuSample{}, leases: map[string]leaseSample{}},
		cdi:        cdi{wake: make(chan struct{}, 1)},
		dynamic:    dynamic{wake: make(chan struct{}, 1)},
		adoption:   adoption{wake: make(chan struct{}, 1)},
		leavers:    leavers{wake: make(chan struct{}, 1), since: time.Now()},
		shares:     shares{gpus: map[gpu.UUID]*slicer{}},
		conditions: conditions{now: time.Now, all: map[conditionKey]api.Condition{}},
	}
	d.events = newBroker(d.now)
	d.tuning.Store(tuningOf(s))
	d.noteState(report)
	d.lost = report.Lost
	if d.lost { // Something may stand, and nobody knows what: so it is said until the node is given back.
		if err := st.Update(func(s *store.State) error { s.Standing = true; return nil }); err != nil {
			log.Error("cannot record that something may stand", "error", err)
		}
	}
	if d.audits, err = ledger.Open(filepath.Join(s.StateDir, "audit"), "audit", ledger.Options{}); err != nil {
		return nil, err
	}
	undo = append(undo, func() { d.closeAudit() })
	d.desired.Store(&desired{})
	h, err := out.hold(ctx, s, log, heard{
		reloaded: func() { d.kick(); d.adoption.look() },
		logins:   d.adoption.look,
		userName: func(uid int) string { return d.rosters.names.UserName(uid) },
		unit: func(name string) {
			if d.desired.Load().adopts(name) {
				d.adoption.look()
			}
		},
	})
	if err != nil {
		return nil, err
	}
	undo = append(undo, h.close)
	d.port, d.follow, d.visitors, d.guard, d.logins, d.programs, d.closeHolder = h.port, h.follow, h.visitors, h.guard, h.logins, h.programs, h.close
	d.books, d.services = h.books, h.services
	if h.guard != nil {
		d.gate = h.guard
	}
	d.driver, err = out.drive(s, h, log)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = d.driver.Close() })
	d.mps = &mps.Supervisor{Units: h.units, Control: s.MPSControl, RunDir: filepath.Join(s.RunDir, "mps"), Log: log, Now: time.Now}
	d.observer = &observe.Observer{Driver: d.driver, Slices: d.port, MPS: d.mps, Guards: d.logins, HostRoot: s.HostRoot, Now: time.Now}
	d.engine = &engine.Engine{Log: log, Handlers: d.handlers(), Now: time.Now, Timeout: d.stepTimeout}
	d.table = lease.New(lease.Config{Walls: walls{d}, Save: d.saveLeases, Changed: d.leaseChanged, Noticed: d.noticed, Rooms: rooms{}, Wanted: d.dynamic.poke})
	d.rosters.names, d.rosters.kicks = &names.Directory{}, make(chan struct{}, 1)
	if s.Getent != "off" {
		d.rosters.names.Program = s.Getent
	}
	d.rosters.p.Store(rosterOf(os.Geteuid(), nil, d.rosters.names))
	return d, nil
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
		d.endings.add(l)
		select {
		case d.leavers.wake <- struct{}{}:
		default: // A look is due already.
		}
		d.adoption.look() // There may be room now.
	}
	d.departures.tell() // Or it moved on, which some wait for too.
	d.page.touch()
	d.cdi.poke()
	d.dynamic.poke()
	for _, wake := range []chan struct{}{d.samples.wake, d.timeWake} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func (d *Daemon) handlers() engine.Handlers {
	instances := &mig.Handler{Driver: d.driver, Who: d.whoUses}
	walls := &isolation.Handler{Slices: d.port}
	control := &mps.Handler{Supervisor: d.mps, Driver: d.driver}
	return engine.Handlers{
		mig.KindMode: instances, mig.KindCreate: instances, mig.KindDestroy: instances,
		isolation.KindSet: walls, isolation.KindRemove: walls,
		isolation.KindGuard: &isolation.GuardHandler{Guards: d.logins},
		mps.KindStart:       control, mps.KindStop: control,
		KindComputeMode: computeMode{d.driver}, KindLeaseStop: leaseStop{d}, KindLeaseRelease: leaseStop{d},
		KindProcessStop: processStop{d}, KindUnitStop: quiesceUnit{d}, KindUnitStart: quiesceUnit{d},
		KindCDIRemove: giveBack{d}, KindUnlimit: giveBack{d}, KindAllowMove: giveBack{d}, KindMigration: migrationPolicy{d},
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
		d.conditions.set("state", "lost", "the state could not be read: "+r.Reason, "the node is taken as it is; apply the spec again. The damaged files are kept in "+d.settings.StateDir)
	case r.FellBack:
		d.conditions.set("state", "fell-back", "the newest state could not be read, the one before it is used: "+r.Reason, "see whether 'gpushare get' is what you expect; the damaged file is kept in "+d.settings.StateDir)
	}
	if r.Reason != "" {
		d.log.Error("the state was damaged", "reason", r.Reason, "kept", r.Quarantined)
	}
}

// audit writes who did what. A full disk never blocks it, and it never blocks anybody.
func (d *Daemon) audit(who, what, text string) {
	if err := d.audits.Append(ledger.Audit{At: d.now(), Who: who, What: what, Text: text, Generation: d.desired.Load().generation}); err != nil {
		d.log.Warn("cannot write the audit ledger", "error", err)
	}
	d.log.Info("changed", "who", who, "what", what, "text", text)
}

func (d *Daemon) closeAudit() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := d.audits.Close(ctx); err != nil {
		d.log.Warn("cannot close the audit ledger", "error", err)
	}
}

// listen takes the socket that the service manager passed, or makes one.
func (d *Daemon) listen() (net.Listener, error) {
	passed := systemd.PassedSockets()
	l, err := passed.Listener("gpushare")
	if left := passed.Close(); len(left) > 0 {
		d.log.Warn("sockets were passed that nobody knows", "names", left)
	}
	if err != nil || l != nil {
		return l, err
	}
	return listen(d.settings.Socket)
}

// guardReady tells why nobody may be frozen now; nil when somebody may.
func (d *Daemon) guardReady() error {
	if d.guard == nil {
		return nil // Nothing can be frozen here at all, which is said elsewhere.
	}
	return d.guard.Ready()
}

// writeRun and readRun keep what lives until the next boot. It is replaced as a whole, so that our death leaves the old or
// the new, and not synced: after a power cut nobody reads it, and every start of a lease waits for it.
func (d *Daemon) writeRun(name string, b []byte) error {
	return store.Replace(d.runPath(name), b, 0o600)
}

func (d *Daemon) readRun(name string) ([]byte, error) { return os.ReadFile(d.runPath(name)) }
