package daemon

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/quota"
)

// Identities knows who is who on this host: names, roles, and members of tenants.
type Identities struct {
	*Reporter
	spec    func() *api.Spec // in force; nil: none is
	tasks   *loop.Group
	rosters *rosters
	changed func() // who is a member of what may be different
}

// Server answers requests on the socket.
type Server struct {
	*Reporter
	tasks   *loop.Group
	rosters *rosters
	turns   turns
	named   func() // somebody came whose name is not known
	routes  []route
}

// Attribution tells whose process it is, and who uses what.
type Attribution struct {
	*Reporter
	// HostRoot is where the host is.
	hostRoot   string
	state      *State
	port       cgroup.Port
	follow     *cgroup.Processes
	visitors   *cgroup.Visitors
	workerPID  func() int // of the NVML worker; 0 when none runs
	observer   *observe.Observer
	table      *lease.Table
	stopsUnits bool // units can be stopped here
	hosts      *isolation.HostCache
	rates      rates
}

// Stopper stops processes.
type Stopper struct {
	*Reporter
	driver      gpu.Driver
	table       *lease.Table
	attribution *Attribution
	departures  *departures
}

// Policy says which device may be opened by whom.
type Policy struct {
	*Reporter
	hostRoot string
	cdiDir   string
	state    *State
	port     cgroup.Port
	observer *observe.Observer
	table    *lease.Table
	logins   *loginGuard // keeps logins from managed GPUs
	mps      *mps.Supervisor
	hosts    *isolation.HostCache
	adopted  atomic.Pointer[[]string] // the cgroups of units that run and that the spec adopts; nil: not known yet
	cdi      cdi
	unseen   unseen
	walls    atomic.Pointer[wanted]
	scopes   scopeRules
	// sliceUse is who uses which slice now, and what of.
	sliceUse func(node *observe.Node) map[cgroup.SliceName]isolation.Use
}

// Changes carries changes from their proposal to their closing.
type Changes struct {
	*Reporter
	settings    changeSettings
	state       *State
	tasks       *loop.Group
	port        cgroup.Port
	driver      gpuDriver
	observer    *observe.Observer
	engine      *engine.Engine
	table       *lease.Table
	services    services
	logins      *loginGuard
	identities  *Identities
	attribution *Attribution
	policy      *Policy
	stopper     *Stopper
	converger   convergence
	leases      stopping
	adopter     limiting
	kick        func()

	dynamic dynamic
	sight   sight
	applyMu sync.Mutex // one plan that may become a change at a time
}

// convergence is what a change needs of the loop.
type convergence interface {
	mend(ctx context.Context) error
	converge(ctx context.Context) error
	refresh(ctx context.Context, node *observe.Node)
}

// stopping ends leases.
type stopping interface {
	stopLease(ctx context.Context, l *lease.Lease, reason string, grace time.Duration) error
}

// limiting is what a change needs of those who limit logins.
type limiting interface {
	limited() (int, error)
	adoptAll(ctx context.Context) error
}

// changeSettings are the settings that changes are made with.
type changeSettings struct {
	HostRoot string
	StateDir string
	CDIDir   string
	SpecFile string        // applied on a node that never had a spec
	Answers  time.Duration // that the driver may take for what only reads
	Changes  time.Duration // that it may take for a change
}

// gpuDriver is the GPUs, and the worker's memory of those that did not answer.
type gpuDriver interface {
	gpu.Driver
	Retry(ctx context.Context, id gpu.UUID) error
}

// Converger is the loop that looks at the node and mends what needs no authority.
type Converger struct {
	*Reporter
	state    *State
	driver   gpu.Driver
	observer *observe.Observer
	engine   *engine.Engine
	port     cgroup.Port
	table    *lease.Table
	notify   watchdog
	logins   *loginGuard
	kicks    loop.Wake
	// convergeInterval is the time between two passes that nobody asked for.
	convergeInterval func() time.Duration
	kick             func()
	guardReady       func() error
	identities       *Identities
	attribution      *Attribution
	policy           *Policy
	changes          changing

	drift drift
}

// watchdog is told that the loop advances.
type watchdog interface{ Watchdog() error }

// changing is what the loop needs of who carries out changes.
type changing interface {
	restore(node *observe.Node)
	restartUnits(ctx context.Context)
	// stillStands tells how many steps are left to give the node back, and the first of them.
	stillStands(node *observe.Node) (n int, first string, err error)
}

// Leases brings leases to life and to their end.
type Leases struct {
	*Reporter
	state       *State
	runDir      store.RunDir
	tasks       *loop.Group
	workerPID   func() int // of the NVML worker; 0 when none runs
	observer    *observe.Observer
	port        cgroup.Port
	follow      *cgroup.Processes
	visitors    *cgroup.Visitors
	table       *lease.Table
	rosters     *rosters
	kick        func()
	attribution *Attribution
	stopper     *Stopper
	policy      *Policy
	escapes     entering

	departures *departures
	endings    endings
	notices    chan told // on their way to terminals
	pending    pending
	programs   programs
	timeWake   loop.Wake  // a lease began or ended: whose time is up next may be another
	visiting   sync.Mutex // one look and one start of a visitor at a time
	watchers   watchers
}

// entering is told of leases that begin.
type entering interface{ note(l *lease.Lease) }

// Adopter takes logins, units and containers into leases.
type Adopter struct {
	*Reporter
	state    *State
	runDir   store.RunDir
	observer *observe.Observer
	port     cgroup.Port
	visitors *cgroup.Visitors
	table    *lease.Table
	rosters  *rosters
	books    books
	// sampleInterval is the time between two samples.
	sampleInterval func() time.Duration
	kick           func()
	attribution    *Attribution
	policy         *Policy
	leases         watching

	adoption   adoption
	containers containers
	perLogin   loginLimits // under the adoption's lock, but for what is shown
}

// watching ends leases when their last process is gone.
type watching interface{ watchLease(id string) }

// Enforcer carries out the quotas of GPU memory and GPU time.
type Enforcer struct {
	*Reporter
	state    *State
	tasks    *loop.Group
	driver   gpu.Driver
	observer *observe.Observer
	gate     cgroup.Gate // freezes only while somebody else could thaw; nil where nothing can be frozen
	table    *lease.Table
	samples  *observe.Samples
	// sampleInterval is the time between two samples.
	sampleInterval func() time.Duration
	attribution    *Attribution
	stopper        *Stopper

	shares  shares
	victims victims
}

// Escapes finds processes that left their lease, and those of no lease.
type Escapes struct {
	*Reporter
	state     *State
	driver    gpu.Driver
	workerPID func() int // of the NVML worker; 0 when none runs
	observer  *observe.Observer
	port      cgroup.Port
	table     *lease.Table
	samples   *observe.Samples
	units     unitFinder // nil where nobody knows units
	// sampleInterval is the time between two samples.
	sampleInterval func() time.Duration
	attribution    *Attribution

	leavers leavers
}

// unitFinder finds the cgroups of units.
type unitFinder interface {
	UnitCgroup(ctx context.Context, unit string) (string, error)
}

// workerState is how the NVML worker fares.
type workerState interface {
	Status() worker.Status
	Stats() worker.Stats
}

// unitState tells whether a unit runs.
type unitState interface {
	UnitActive(ctx context.Context, unit string) (bool, error)
}

// Viewer makes what people see.
type Viewer struct {
	*Reporter
	stateDir     string
	hostRoot     string
	host         string
	state        *State
	driver       workerState
	observer     *observe.Observer
	port         cgroup.Port
	table        *lease.Table
	samples      *observe.Samples
	rosters      *rosters
	logins       *loginGuard
	limitsLogins bool      // logins can be limited here
	services     unitState // nil where nothing stops units
	gate         cgroup.Gate
	guardReady   func() error
	attribution  *Attribution
	policy       *Policy
	told         viewed

	page page
}

// viewed is what the managers tell to be shown.
type viewed struct {
	adoption interface {
		loginsHeld(tenant string, limit uint64) int
	}
	converge interface {
		lastDrift() (at time.Time, text string)
	}
	change interface {
		idleSince(id gpu.UUID, at gpu.Placement, generation uint64) (time.Time, bool)
	}
	enforce interface {
		fill(l *api.Lease, enforced bool)
		overuse(l *lease.Lease) quota.Overuse
	}
	leases interface {
		endedLeases() []api.Lease
	}
}
