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
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/account"
	"github.com/gpushare/gpushare/daemon/acknowledge"
	"github.com/gpushare/gpushare/daemon/adoption"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/change"
	"github.com/gpushare/gpushare/daemon/converge"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/enforce"
	"github.com/gpushare/gpushare/daemon/escape"
	"github.com/gpushare/gpushare/daemon/fronting"
	"github.com/gpushare/gpushare/daemon/health"
	"github.com/gpushare/gpushare/daemon/host"
	"github.com/gpushare/gpushare/daemon/instances"
	"github.com/gpushare/gpushare/daemon/leases"
	"github.com/gpushare/gpushare/daemon/maintenance"
	"github.com/gpushare/gpushare/daemon/memorylimit"
	"github.com/gpushare/gpushare/daemon/metrics"
	mpsaccess "github.com/gpushare/gpushare/daemon/mps/access"
	"github.com/gpushare/gpushare/daemon/mps/bypass"
	mpsfault "github.com/gpushare/gpushare/daemon/mps/fault"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/settings"
	"github.com/gpushare/gpushare/daemon/specs"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/status"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/daemon/unmanage"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/kernel/descent"
	"github.com/gpushare/gpushare/internal/kernel/exits"
	"github.com/gpushare/gpushare/internal/kernel/kernellog"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
	"github.com/gpushare/gpushare/power"
	"github.com/gpushare/gpushare/quota"
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
	findHost   func(context.Context, settings.Settings, *slog.Logger, host.HostEvents) (*host.Host, error)
	openDriver func(settings.Settings, *host.Host, *slog.Logger) (driver, error)
	listen     func() (*exits.Listener, error)   // to the ends of processes; nil: their exit codes are not known
	boot       func() time.Duration              // since boot; nil: the kernel's clock
	front      func(*host.Host) fronting.Starter // nil, or without a result: this process reads every caller
}

type driver = host.Driver

// realEnvironment is the environment on a real host, and with the virtual driver.
func realEnvironment() environment {
	return environment{
		findHost: findHost,
		listen:   exits.Listen,
		front:    frontOf,
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
	if err := os.MkdirAll(s.RunDir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot create the run directory: %w", err)
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
	d.identities = server.NewIdentities(d.Reporter, d.tasks, s.Getent)
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
	d.state.Observed = d.observer.Last
	d.account = d.newAccount(out.boot)
	var listener *exits.Listener
	if out.listen != nil {
		if listener, err = out.listen(); err != nil {
			log.Info("the exit codes of commands that users started are not known", "reason", err)
		}
		undo = append(undo, func() { _ = listener.Close() }) // The returned error is more important.
	}
	d.compose(h, convergeWake, adoptionWake, unitWake)
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
		Expected:     func() []gpu.UUID { return d.state.Desired().Expected() },
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

// compose makes the managers and connects them. It starts nothing.
func (d *Daemon) compose(h *host.Host, convergeWake, adoptionWake, unitWake loop.Wake) {
	s, run := d.settings, store.RunDir(d.settings.RunDir)
	engine := &engine.Engine{Log: d.Log, Now: time.Now}
	// The table and the isolation of leases need each other, so the isolation is completed after the table is made.
	leaseIsolation := &leases.Isolation{}
	leaseChanges := &stop.LeaseChanges{}
	d.table = lease.New(lease.Config{
		Isolation: leaseIsolation, Capacity: planner.Capacity{},
		Save:            func(ctx context.Context, state []byte) error { return d.leases.SaveLeases(ctx, state) },
		Noticed:         func(l lease.Lease, n lease.Notice) { d.leases.Noticed(l, n) },
		Changed:         func(l lease.Lease) { d.leaseChanged(l) },
		InstancePending: func() { d.instances.Due.Set() },
		Preempted:       func() { d.leases.TimeWake.Set() },
	})
	ready := func() error { return nil } // Without a freezer another condition reports it.
	if h.Freezer != nil {
		ready = h.Freezer.Ready
	}
	samples := observe.NewSamples()
	hosts := &isolation.HostCache{Root: s.HostRoot}
	sampleInterval := func() time.Duration { return d.live.tuning.Load().Sample }
	var units escape.UnitFinder // A nil adapter must stay a nil interface.
	if h.Sessions != nil {
		units = h.Sessions
	}
	var unitState status.UnitState
	if h.Services != nil {
		unitState = h.Services
	}
	workerPID := func() int { return d.driver.Status().PID }
	d.server = &server.Server{Reporter: d.Reporter, Tasks: d.tasks, Identities: d.identities}
	d.attribution = &attribution.Attribution{
		Reporter:     d.Reporter,
		HostRoot:     s.HostRoot,
		State:        d.state,
		Port:         h.Port,
		Follow:       h.Follow,
		Attachments:  h.Attachments,
		WorkerPID:    workerPID,
		Observer:     d.observer,
		Table:        d.table,
		CanStopUnits: h.Services != nil,
		Hosts:        hosts,
	}
	d.policy = &devicepolicy.Policy{
		Reporter: d.Reporter,
		HostRoot: s.HostRoot,
		CDIDir:   s.CDIDir,
		State:    d.state,
		Port:     h.Port,
		Observer: d.observer,
		Table:    d.table,
		Logins:   h.LoginFilter,
		MPS:      d.controls,
		Hosts:    hosts,
		SliceUse: d.attribution.SliceUse,
		CDI:      devicepolicy.CDI{Wake: loop.NewWake()},
		Units:    unitWake,
		Helper:   h.Helper,
		Changed:  func() { d.converger.NodesChanged() },
	}
	d.stopper = &stop.Stopper{
		Reporter:     d.Reporter,
		Driver:       d.driver,
		Table:        d.table,
		Attribution:  d.attribution,
		LeaseChanges: leaseChanges,
		Tasks:        d.tasks,
	}
	var hierarchy *cgroup.Hierarchy
	if h.Port.Info().Slices {
		hierarchy = h.Port.Abilities().Hierarchy
	}
	memory := &memorylimit.Limits{
		Reporter: d.Reporter, State: d.state, Driver: d.driver, Observer: d.observer, Table: d.table, Hierarchy: hierarchy,
		Overuse: func(l *lease.Lease) quota.OverusePolicy { return d.enforcer.Overuse(l) },
	}
	d.escapes = &escape.Escapes{
		Reporter:       d.Reporter,
		State:          d.state,
		Driver:         d.driver,
		Observer:       d.observer,
		Port:           h.Port,
		Table:          d.table,
		Samples:        samples,
		Units:          units,
		WorkerPID:      workerPID,
		SampleInterval: sampleInterval,
		Attribution:    d.attribution,
		Changed:        func() { d.converger.PlacesChanged() },
		UserName:       d.identities.Names.UserName,
		Escaped:        escape.Escaped{Wake: loop.NewWake(), Since: time.Now()},
	}
	d.bypass = &bypass.Search{
		Reporter:       d.Reporter,
		State:          d.state,
		Driver:         d.driver,
		Observer:       d.observer,
		Table:          d.table,
		Samples:        samples,
		Attribution:    d.attribution,
		SampleInterval: sampleInterval,
		Changed:        func() { d.converger.PlacesChanged() },
		Clients:        d.controls,
		Stopper:        d.stopper,
	}
	d.escapes.NoDescent = h.NoDescent
	if h.Former {
		d.escapes.FormerMounts = descent.FormerMounts
	}
	if h.Descent != nil { // A nil record must stay a nil interface.
		d.escapes.Descent, d.escapes.RecordBegins, d.escapes.NotKept = h.Descent, h.Descent.Begins, h.Descent.NotKept
		h.Descent.UserOf = func(id string) (uid int, ok bool) {
			l, ok := d.table.Get(id)
			return l.UID, ok
		}
	}
	d.leases = &leases.Leases{
		Reporter:     d.Reporter,
		State:        d.state,
		RunDir:       run,
		Tasks:        d.tasks,
		WorkerPID:    workerPID,
		Observer:     d.observer,
		Port:         h.Port,
		Follow:       h.Follow,
		Attachments:  h.Attachments,
		Table:        d.table,
		Identities:   d.identities,
		Wake:         d.wakeConverge,
		Attribution:  d.attribution,
		Stopper:      d.stopper,
		Policy:       d.policy,
		Escapes:      d.escapes,
		Memory:       memory,
		LeaseChanges: leaseChanges,
		Notices:      make(chan leases.QueuedNotice, leases.NoticeQueue),
		Detached:     leases.Detached{Programs: h.Programs, Outputs: h.Programs},
		TimeWake:     loop.NewWake(),
		Watchers:     leases.Watchers{Watched: map[string]bool{}},
	}
	leaseIsolation.Leases = d.leases
	d.identities.Owns = func(uid int) bool { return d.table.Owns(uid) || d.leases.HasEnded(uid) }
	d.leases.ConvergeInterval = func() time.Duration { return d.live.tuning.Load().Converge }
	d.account.Table, d.account.Leases = d.table, d.leases
	d.account.Held = func(id string) bool {
		return h.Freezer != nil &&
			slices.ContainsFunc(h.Freezer.Reasons(id), func(r cgroup.FreezeReason) bool { return r != cgroup.ForTimeSlice })
	}
	d.adopter = &adoption.Adopter{
		Reporter:       d.Reporter,
		State:          d.state,
		RunDir:         run,
		Observer:       d.observer,
		Port:           h.Port,
		Hierarchy:      sync.OnceValues(cgroup.FindHierarchy),
		Attachments:    h.Attachments,
		Table:          d.table,
		Identities:     d.identities,
		Sessions:       h.Sessions,
		SampleInterval: sampleInterval,
		Wake:           d.wakeConverge,
		Attribution:    d.attribution,
		Policy:         d.policy,
		Leases:         d.leases,
		Adoption:       adoption.Adoption{Wake: adoptionWake},
	}
	totals := &metrics.Totals{}
	d.enforcer = &enforce.Enforcer{
		Reporter:       d.Reporter,
		Recorder:       metrics.Recorder{Account: d.account, Totals: totals},
		State:          d.state,
		Driver:         d.driver,
		Observer:       d.observer,
		Table:          d.table,
		Samples:        samples,
		SampleInterval: sampleInterval,
		ReadingTime:    d.driver.ReadingTime,
		Attribution:    d.attribution,
		Stopper:        d.stopper,
		Leases:         d.leases,
		Wake:           loop.NewWake(),
		Shares:         enforce.Shares{GPUs: map[gpu.UUID]*enforce.Slicer{}},
		Tenants:        enforce.FrozenTenants{RunDir: run, Wake: loop.NewWake()},
		Cooling:        enforce.Cooling{Wake: loop.NewWake()},
	}
	leaseIsolation.MayStart, leaseIsolation.Vacant = d.enforcer.MayStart, d.escapes.Vacant
	d.specs = &specs.Specs{
		Reporter:   d.Reporter,
		State:      d.state,
		Identities: d.identities,
		File:       s.SpecFile,
		Apply: func(ctx context.Context, doc *spec.Document, by string) (*api.ApplyResult, error) {
			return d.changes.ApplyDocument(ctx, doc, by)
		},
	}
	d.changes = &change.Changes{
		Reporter: d.Reporter,
		Settings: change.ChangeSettings{
			HostRoot: s.HostRoot, StateDir: s.StateDir,
			AnswerTimeout: time.Duration(s.DriverReadTimeout), ChangeTimeout: time.Duration(s.DriverChangeTimeout),
		},
		State:       d.state,
		Specs:       d.specs,
		Tasks:       d.tasks,
		Driver:      d.driver,
		Observer:    d.observer,
		Engine:      engine,
		Table:       d.table,
		Services:    h.Services,
		Identities:  d.identities,
		Attribution: d.attribution,
		Policy:      d.policy,
		Stopper:     d.stopper,
		Leases:      d.leases,
		Wake:        d.wakeConverge,
		Idle:        func() { d.instances.Due.Set() },
	}
	d.instances = &instances.Instances{
		Reporter:    d.Reporter,
		StateDir:    s.StateDir,
		State:       d.state,
		Tasks:       d.tasks,
		Observer:    d.observer,
		Table:       d.table,
		Attribution: d.attribution,
		Policy:      d.policy,
		Changes:     d.changes,
		Refresh:     func(ctx context.Context, node *observe.Node) { d.converger.Refresh(ctx, node) },
		Wake:        d.wakeConverge,
		Due:         loop.NewWake(),
	}
	d.converger = &converge.Converger{
		Reporter:         d.Reporter,
		State:            d.state,
		Driver:           d.driver,
		Observer:         d.observer,
		Engine:           engine,
		Port:             h.Port,
		Table:            d.table,
		Notify:           d.notify,
		Logins:           h.LoginFilter,
		ConvergeInterval: func() time.Duration { return d.live.tuning.Load().Converge },
		Signal:           convergeWake,
		Wake:             d.wakeConverge,
		SuspectMPS:       d.controls.Suspect,
		ThawReady:        ready,
		Identities:       d.identities,
		Attribution:      d.attribution,
		Policy:           d.policy,
		Changes:          d.changes,
		MemoryLimits:     memory,
	}
	caps := &power.Caps{Driver: d.driver, Dir: filepath.Join(s.StateDir, "power"), Now: time.Now}
	d.unmanaging = &unmanage.Unmanaging{
		Reporter:    d.Reporter,
		CDIDir:      s.CDIDir,
		State:       d.state,
		Tasks:       d.tasks,
		Port:        h.Port,
		Observer:    d.observer,
		Table:       d.table,
		Logins:      h.LoginFilter,
		Attribution: d.attribution,
		Policy:      d.policy,
		Power:       caps,
		Changes:     d.changes,
		Memory:      memory,
		Adopter:     d.adopter,
	}
	d.changes.Unmanage, d.converger.Unmanage = d.unmanaging, d.unmanaging
	d.changes.Converger, d.changes.Memory, d.changes.Power, d.converger.Power = d.converger, memory, caps, caps
	access := &mpsaccess.Access{
		Reporter:    d.Reporter,
		State:       d.state,
		Observer:    d.observer,
		Table:       d.table,
		Identities:  d.identities,
		Attribution: d.attribution,
		MPS:         d.controls,
		Wake:        d.wakeConverge,
	}
	d.converger.MPSAccess = access
	d.converger.MPSFaults = &mpsfault.Faults{
		Reporter: d.Reporter,
		State:    d.state,
		Observed: d.observer.Last,
		Lease:    d.table.Get,
		LeaseOf:  d.attribution.LeaseOf,
		Leases:   d.leases,
		Stopper:  d.stopper,
		Wake:     d.wakeConverge,
	}
	d.health = &health.Health{
		Reporter:    d.Reporter,
		State:       d.state,
		Observed:    d.observer.Last,
		Driver:      d.driver,
		Lease:       d.table.Get,
		Live:        d.table.Live,
		Leases:      d.leases,
		LeaseLookup: d.attribution.LeaseLookup,
		Wake:        d.wakeConverge,
		Heated:      d.enforcer.Cooling.Wake.Set,
		Admit:       func() { d.converger.UpdateTable(d.observer.Last()) },
		FollowLog:   func(ctx context.Context, f func(kernellog.Record)) error { return kernellog.Follow(ctx, s.HostRoot, f) },
		StateDir:    store.RunDir(s.StateDir),
		Due:         loop.NewWake(),
		Arrived:     loop.NewWake(),
	}
	d.converger.Health, d.changes.Health, d.enforcer.Cooling.Heat = d.health, d.health, d.health.Heat
	d.maintenance = &maintenance.Maintenance{
		Reporter:  d.Reporter,
		StateDir:  s.StateDir,
		State:     d.state,
		Observer:  d.observer,
		Table:     d.table,
		Driver:    d.driver,
		Changes:   d.changes,
		Converger: d.converger,
		Users:     d.attribution,
		UserName:  d.identities.Names.UserName,
		Wake:      loop.NewWake(),
	}
	d.acknowledged = &acknowledge.Acknowledgements{
		Reporter: d.Reporter,
		StateDir: s.StateDir,
		State:    d.state,
		Began:    d.Now(),
		Wake:     loop.NewWake(),
	}
	d.viewer = &status.Viewer{
		Reporter:     d.Reporter,
		StateDir:     s.StateDir,
		HostRoot:     s.HostRoot,
		Host:         hostname(),
		State:        d.state,
		Driver:       d.driver,
		Observer:     d.observer,
		Port:         h.Port,
		Table:        d.table,
		Samples:      samples,
		Identities:   d.identities,
		Logins:       h.LoginFilter,
		LimitsLogins: h.Sessions != nil,
		Services:     unitState,
		FreezerReady: ready,
		Unconfined:   d.unconfined,
		Attribution:  d.attribution,
		Policy:       d.policy,
		Power:        d.changes.Power,
		MPS:          d.controls,
		Managers: status.Managers{
			Acknowledge: d.acknowledged,
			Account:     d.account,
			Adoption:    d.adopter,
			Converge:    d.converger,
			Instances:   d.instances,
			Enforce:     d.enforcer,
			Memory:      memory,
			Leases:      d.leases,
			Health:      d.health,
		},
	}
	if h.Freezer != nil { // A nil adapter must stay a nil interface.
		freezer := &mpsaccess.Freezer{
			Scopes:   h.Freezer,
			Lease:    d.table.Get,
			LeaseOf:  d.attribution.LeaseOf,
			Observed: d.observer.Last,
			MPS:      d.controls,
			Now:      time.Now,
		}
		d.stopper.Freezer, d.enforcer.Freezer, d.viewer.Freezer, access.Freezer = freezer, freezer, freezer, freezer
	}
	d.metrics = &metrics.Exporter{Reporter: d.Reporter, Status: d.viewer, Worker: d.driver, Totals: totals}
	d.jobs = &metrics.JobFiles{Reporter: d.Reporter, Dir: s.JobFilesDir, Status: d.viewer, Wake: loop.NewWake()}
	if s.MetricsAddress != "" {
		d.network = &metrics.Network{Exporter: d.metrics, Address: s.MetricsAddress, WebConfig: s.MetricsWebConfig}
	}
	d.server.Routes = d.routes()
	engine.Handlers, engine.Timeout = d.handlers(h.LoginFilter), d.changes.StepTimeout
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

// leaseChanged is called with the table's lock held: it only wakes loops.
func (d *Daemon) leaseChanged(l lease.Lease) {
	var result string
	var exitCode *int
	if l.State == lease.Ended {
		d.leases.Ended.Add(l)
		result, exitCode = d.leases.Result(&l)
		d.escapes.Escaped.Wake.Set()
		d.adopter.Adoption.Recheck() // Another lease may fit now.
	}
	if l.Terms.Kind() == api.ModeMPS && (l.State == lease.Ended || l.InPlace()) {
		d.wakeConverge() // Its users may reach the socket, or no longer.
	}
	d.account.Changed(&l, result, exitCode)
	d.leases.LeaseChanges.Report() // Some callers wait for other states too.
	d.Invalidate()
	d.policy.CDI.Update()
	d.instances.Due.Set()
	d.enforcer.Wake.Set()
	d.enforcer.Tenants.Wake.Set()
	d.enforcer.Cooling.Wake.Set()
	d.leases.TimeWake.Set()
	d.maintenance.Wake.Set()
	d.jobs.Wake.Set()
}

func (d *Daemon) handlers(filters *devicepolicy.LoginFilter) engine.Handlers {
	migHandler := &mig.Handler{Driver: d.driver, InUseBy: d.attribution.DeviceUsers}
	isolationHandler := &isolation.Handler{Slices: d.host.Port}
	runsMPS := &control.Handler{Supervisor: d.controls, Driver: d.driver}
	return engine.Handlers{
		mig.KindMode:              migHandler,
		mig.KindCreate:            migHandler,
		mig.KindDestroy:           migHandler,
		mig.KindCompare:           &mig.CompareHandler{Driver: d.driver, Report: d.reportProfiles},
		isolation.KindSet:         isolationHandler,
		isolation.KindRemove:      isolationHandler,
		isolation.KindLoginFilter: &isolation.LoginFilterHandler{Host: filters},
		mps.KindStart:             runsMPS,
		mps.KindStop:              runsMPS,
		mps.KindRestart:           control.RestartHandler{Handler: runsMPS},
		planner.KindComputeMode:   change.ComputeMode{Driver: d.driver},
		planner.KindLeaseStop:     change.LeaseStop{D: d.changes},
		planner.KindLeaseRelease:  change.LeaseStop{D: d.changes},
		planner.KindProcessStop:   change.ProcessStop{Stopper: d.stopper},
		planner.KindUnitStop:      change.QuiesceUnit{D: d.changes},
		planner.KindUnitStart:     change.QuiesceUnit{D: d.changes},
		planner.KindCDIRemove:     unmanage.Step{U: d.unmanaging},
		planner.KindLoginLimits:   unmanage.Step{U: d.unmanaging},
		planner.KindMemoryLimits:  unmanage.Step{U: d.unmanaging},
		planner.KindMigration:     devicepolicy.MigrationPolicy{Port: d.host.Port},
		power.KindLimit:           power.Handler{Caps: d.changes.Power},
	}
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
