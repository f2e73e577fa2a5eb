package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/account"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/fronting"
	"github.com/gpushare/gpushare/daemon/host"
	"github.com/gpushare/gpushare/daemon/metrics"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/settings"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/kernel/exits"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/resident"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mps/control"
	"github.com/gpushare/gpushare/systemd"
)

// The state has a format that this version does not read: a restart does not help (exit 78).
var (
	ErrNewerState = store.ErrNewerFormat
	ErrOlderState = store.ErrOlderFormat
)

// NewLogger logs to the journal when the daemon runs under systemd, else as text. The level can be changed later.
func NewLogger(s settings.Settings, errs io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := &slog.LevelVar{}
	_ = level.UnmarshalText([]byte(s.LogLevel)) // settings.Load has refused an unknown level; here it is info.
	return slog.New(systemd.LogHandler(errs, level)), level
}

// environment is what a daemon uses outside of its process, in addition to files: the adapters of the host, and the GPUs.
type environment struct {
	self       int // the uid that the daemon runs as
	findHost   func(context.Context, settings.Settings, *slog.Logger, host.HostEvents) (*host.Host, error)
	openDriver func(settings.Settings, *host.Host, *slog.Logger) (driver, error)
	listen     func() (*exits.Listener, error)   // to the ends of processes; nil: their exit codes are not known
	boot       func() time.Duration              // since boot; nil: the kernel's clock
	front      func(*host.Host) fronting.Starter // nil, or without a result: this process reads every caller
	release    func() error                      // returns memory that is not used to the kernel; nil: it is not returned
}

type driver = host.Driver

// realEnvironment is the environment on a real host, and with the virtual driver.
func realEnvironment() environment {
	return environment{
		self:     os.Geteuid(),
		findHost: findHost,
		listen:   exits.Listen,
		front:    frontOf,
		release:  resident.Release,
		openDriver: func(s settings.Settings, h *host.Host, log *slog.Logger) (driver, error) {
			return worker.New(worker.Options{
				Command: []string{
					s.Worker,
				},
				Env:       host.WorkerEnv(),
				RunDir:    s.RunDir,
				Library:   s.Library,
				HostRoot:  s.HostRoot,
				Launcher:  h.Launcher,
				Log:       log,
				Deadlines: host.Deadlines(time.Duration(s.DriverReadTimeout), time.Duration(s.DriverChangeTimeout)),
			})
		},
	}
}

// frontOf returns what starts the front. The daemon of an ordinary user has nothing that its callers do not have.
func frontOf(h *host.Host) fronting.Starter {
	if os.Geteuid() != 0 {
		return nil
	}
	return h.Front
}

// build makes the daemon with all its parts. After an error it closes the parts that were made.
func build(ctx context.Context, s settings.Settings, log *slog.Logger, level *slog.LevelVar, out environment) (d *Daemon, err error) {
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
	st, damage, err := store.Open(s.StateDir, s.RunDir) // Daemons with one run directory use the same cgroups and sockets.
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = st.Close() }) // The returned error is more important.
	d = &Daemon{
		Reporter: report.NewReporter(log, time.Now),
		settings: s,
		notify:   notify,
		release:  out.release,
		state:    state.NewState(st, damage.Lost),
		tasks:    &loop.Group{},
		live:     liveSettings{level: level, tuning: new(atomic.Pointer[settings.Tuning])},
	}
	d.Generation = func() uint64 { return d.state.Desired().Generation }
	d.live.tuning.Store(s.Tuning())
	d.reportDamage(damage)
	if d.state.Lost { // Restrictions may be active that are not known. Status reports this until the node is unmanaged.
		if err := st.Update(func(s *store.State) error { s.ActiveRestrictions = true; return nil }); err != nil {
			log.Error("cannot record that restrictions may be active", "error", err)
		}
	}
	if err := d.openAudit(); err != nil {
		return nil, err
	}
	undo = append(undo, func() { d.Reporter.Close() })
	convergeWake, adoptionWake, unitWake := loop.NewWake(), loop.NewWake(), loop.NewWake()
	d.wakeConverge = convergeWake.Set
	d.identities = server.NewIdentities(d.Reporter, d.tasks, out.self, s.Getent)
	d.identities.ChecksGroups = true
	d.identities.Spec, d.identities.Changed = func() *api.Spec { return d.state.Desired().Spec }, adoptionWake.Set
	h, err := out.findHost(ctx, s, log, d.hostEvents(adoptionWake, unitWake))
	if err != nil {
		return nil, err
	}
	undo = append(undo, h.Close)
	d.host = h
	d.driver, err = out.openDriver(s, h, log)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = d.driver.Close() })
	d.controls = newSupervisor(s, h.Units, log)
	d.observer = d.newObserver(h)
	d.NameGPUs(func(uuid string) (int, bool) {
		if node := d.observer.Last(); node != nil {
			for i := range node.GPUs {
				if id := &node.GPUs[i].Identity; string(id.UUID) == uuid && id.Index >= 0 {
					return id.Index, true
				}
			}
		}
		return 0, false
	})
	d.state.Observed = d.observer.Last
	d.account = d.newAccount(out.boot)
	var listener *exits.Listener
	if out.listen != nil {
		if listener, err = out.listen(); err != nil {
			log.Info("the exit codes of commands that users started are not known", "reason", err)
		}
		undo = append(undo, func() { _ = listener.Close() }) // The returned error is more important.
	}
	d.compose(convergeWake, adoptionWake, unitWake)
	d.leases.Watchers.Exits = listener
	if out.front != nil {
		err = d.addFront(out.front(h), h.Packaged)
	}
	return d, err
}

// hostEvents says what follows from an event of the host.
func (d *Daemon) hostEvents(adoptionWake, unitWake loop.Wake) host.HostEvents {
	return host.HostEvents{
		Reloaded: func() { d.wakeConverge(); adoptionWake.Set() },
		Logins:   adoptionWake.Set,
		UserName: d.identities.Names.UserName,
		Unit: func(name string) {
			if d.state.Desired().Adopts(name) {
				adoptionWake.Set()
			}
			if name == "" || slices.Contains(d.state.Desired().ClosedUnits(), name) {
				unitWake.Set()
			}
		},
	}
}

// newSupervisor makes the supervisor of MPS control daemons. It starts nothing.
func newSupervisor(s settings.Settings, units control.Units, log *slog.Logger) *control.Supervisor {
	return &control.Supervisor{
		Units:    units,
		Control:  s.MPSControl,
		RunDir:   filepath.Join(s.RunDir, "mps"),
		StateDir: filepath.Join(s.StateDir, "mps"),
		Log:      log,
		Now:      time.Now,
	}
}

// newObserver makes what reads the node. It reads nothing yet.
func (d *Daemon) newObserver(h *host.Host) *observe.Observer {
	return &observe.Observer{
		Driver:       d.driver,
		Slices:       h.Port,
		MPS:          d.controls,
		LoginFilters: h.LoginFilter,
		HostRoot:     d.settings.HostRoot,
		Now:          time.Now,
		Ended: func(pid int) bool {
			return procfs.Ended(procfs.Read(pid))
		},
		Expected: func() []gpu.UUID { return d.state.Desired().Expected() },
		Recall: func(id gpu.UUID) (gpu.Identity, bool) {
			was, ok := d.state.Stored().Identities[id]
			return was, ok
		},
		Assume: d.assumeProfiles,
	}
}

// addFront adds the process that reads callers who are not administrators.
func (d *Daemon) addFront(starter fronting.Starter, packaged bool) (err error) {
	if starter == nil {
		return nil
	}
	d.front = &fronting.Front{Reporter: d.Reporter, Starter: starter, Packaged: packaged}
	d.server.Front = d.front
	d.front.Table, err = d.server.FrontTable()
	return err
}

// newAccount makes the account. It reads and writes nothing yet.
func (d *Daemon) newAccount(boot func() time.Duration) *account.Account {
	if boot == nil {
		boot = procfs.BootTime
	}
	id, err := procfs.BootID(d.settings.HostRoot)
	if err != nil {
		d.Log.Warn("the account cannot tell whether the node was started again", "error", err)
	}
	return account.New(
		&account.Account{
			Reporter: d.Reporter,
			State:    d.state,
			Dir:      filepath.Join(d.settings.StateDir, "ledger"),
			RunDir:   store.RunDir(d.settings.RunDir),
			BootID:   id,
			Boot:     boot,
		},
	)
}

// hostOptions returns the settings for the adapters of the host.
func hostOptions(s settings.Settings) host.Options {
	return host.Options{
		Systemd:    s.Systemd,
		HostRoot:   s.HostRoot,
		RunDir:     s.RunDir,
		StateDir:   s.StateDir,
		CgroupRoot: s.CgroupRoot,
		Start:      s.Start,
		Thaw:       s.Thaw,
		Front:      s.Front,
		Logins:     s.LoginsCgroup,
	}
}

func findHost(ctx context.Context, s settings.Settings, log *slog.Logger, events host.HostEvents) (*host.Host, error) {
	return host.Find(ctx, hostOptions(s), log, events)
}

// AttachLoginFilter closes the GPUs to logins before the first login: at boot the daemon starts later, and the driver may
// load later still. It writes one line to out.
func AttachLoginFilter(s settings.Settings, out io.Writer) error {
	return devicepolicy.AttachLoginFilter(s.HostRoot, s.StateDir, hostOptions(s).LoginsCgroup(), out)
}

// reportDamage reports a state that could not be read at start.
func (d *Daemon) reportDamage(r store.Report) {
	switch {
	case r.Lost:
		d.Conditions.Set(
			"state", "lost", "the state could not be read: "+r.Reason,
			"the node is kept as it is; apply the spec again. The damaged files are kept in "+d.settings.StateDir,
		)
	case r.FellBack:
		d.Conditions.Set(
			"state", "fell-back", "the newest state could not be read, the previous one is used: "+r.Reason,
			"check the spec with 'gpushare get'; the damaged file is kept in "+d.settings.StateDir,
		)
	}
	if r.Reason != "" {
		d.Log.Error("the state was damaged", "message_id", report.MessageStateDamaged, "reason", r.Reason, "kept", r.Quarantined)
	}
}

// listen returns the socket that the service manager passed, or opens one.
func (d *Daemon) listen() (net.Listener, error) {
	passed := systemd.PassedSockets()
	l, err := passed.Listener("gpushare")
	if left := passed.Close(); len(left) > 0 {
		d.Log.Warn("the service manager passed unknown sockets", "names", left)
	}
	if err != nil || l != nil {
		return l, err
	}
	return server.Listen(d.settings.Socket)
}

// listenForScrapes opens the TCP address of the metrics; nil if the settings have none.
func (d *Daemon) listenForScrapes(ctx context.Context) (net.Listener, error) {
	if d.network == nil {
		return nil, nil
	}
	l, err := d.network.Listen(ctx)
	if errors.Is(err, metrics.ErrConfig) {
		err = fmt.Errorf("%w: %w", settings.ErrWrong, err)
	}
	return l, err
}
