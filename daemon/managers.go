package daemon

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/quota"
)

// Identities knows who is who on this host: names, roles, and members of tenants.
type Identities struct {
	*Reporter
	state   *State
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

// Planner makes plans of what changes no hardware.
type Planner struct {
	state       *State
	port        cgroup.Port
	logins      *loginGuard
	table       *lease.Table
	attribution *Attribution
	policy      *Policy
}

// Attribution tells whose process it is, and who uses what.
type Attribution struct {
	*Reporter
	settings Settings
	state    *State
	port     cgroup.Port
	follow   *cgroup.Processes
	visitors *cgroup.Visitors
	driver   driver
	observer *observe.Observer
	table    *lease.Table
	services services
	hosts    *hosts
	rates    rates
}

// Stopper stops processes.
type Stopper struct {
	*Reporter
	driver      driver
	table       *lease.Table
	attribution *Attribution
	departures  *departures
}

// Policy says which device may be opened by whom.
type Policy struct {
	*Reporter
	settings Settings
	state    *State
	port     cgroup.Port
	observer *observe.Observer
	table    *lease.Table
	logins   *loginGuard // keeps logins from managed GPUs
	mps      *mps.Supervisor
	hosts    *hosts
	adopted  atomic.Pointer[[]string] // the cgroups of units that run and that the spec adopts; nil: not known yet
	cdi      cdi
	unseen   unseen
	walls    atomic.Pointer[wanted]
	scopes   scopeRules
}

// Changes carries changes from their proposal to their closing.
type Changes struct {
	*Reporter
	settings    Settings
	state       *State
	tasks       *loop.Group
	port        cgroup.Port
	driver      driver
	observer    *observe.Observer
	engine      *engine.Engine
	table       *lease.Table
	services    services
	logins      *loginGuard
	identities  *Identities
	planner     *Planner
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

// Converger is the loop that looks at the node and mends what needs no authority.
type Converger struct {
	*Reporter
	state       *State
	driver      driver
	observer    *observe.Observer
	engine      *engine.Engine
	port        cgroup.Port
	table       *lease.Table
	notify      notifier
	logins      *loginGuard
	tuning      *atomic.Pointer[tuning]
	kicks       loop.Wake
	kick        func()
	guardReady  func() error
	identities  *Identities
	planner     *Planner
	attribution *Attribution
	policy      *Policy
	changes     changing

	drift drift
}

// changing is what the loop needs of who carries out changes.
type changing interface {
	restore(node *observe.Node)
	restartUnits(ctx context.Context)
	standing(node *observe.Node, what string) (left, error)
}

// Leases brings leases to life and to their end.
type Leases struct {
	*Reporter
	state       *State
	runDir      store.RunDir
	tasks       *loop.Group
	driver      driver
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
	state       *State
	runDir      store.RunDir
	observer    *observe.Observer
	port        cgroup.Port
	visitors    *cgroup.Visitors
	table       *lease.Table
	rosters     *rosters
	books       books
	tuning      *atomic.Pointer[tuning]
	kick        func()
	attribution *Attribution
	policy      *Policy
	leases      watching

	adoption   adoption
	containers containers
	perLogin   loginLimits // under the adoption's lock, but for what is shown
}

// watching ends leases when their last process is gone.
type watching interface{ watchLease(id string) }

// Enforcer carries out the quotas of GPU memory and GPU time.
type Enforcer struct {
	*Reporter
	state       *State
	tasks       *loop.Group
	driver      driver
	observer    *observe.Observer
	gate        cgroup.Gate // freezes only while somebody else could thaw; nil where nothing can be frozen
	table       *lease.Table
	samples     *samples
	tuning      *atomic.Pointer[tuning]
	attribution *Attribution
	stopper     *Stopper

	shares  shares
	victims victims
}

// Escapes finds processes that left their lease, and those of no lease.
type Escapes struct {
	*Reporter
	state       *State
	driver      driver
	observer    *observe.Observer
	port        cgroup.Port
	table       *lease.Table
	samples     *samples
	books       books
	tuning      *atomic.Pointer[tuning]
	attribution *Attribution

	leavers leavers
}

// Viewer makes what people see.
type Viewer struct {
	*Reporter
	settings    Settings
	host        string
	state       *State
	driver      driver
	observer    *observe.Observer
	port        cgroup.Port
	table       *lease.Table
	samples     *samples
	rosters     *rosters
	logins      *loginGuard
	books       books
	services    services
	gate        cgroup.Gate
	guardReady  func() error
	planner     *Planner
	attribution *Attribution
	policy      *Policy
	told        viewed

	page page
}

// viewed is what the managers tell to be shown.
type viewed struct {
	adoption interface {
		loginLimits() map[int]loginLimit
	}
	converge interface{ history() []mendedDrift }
	change   interface {
		idleSince(k idleKey) (time.Time, bool)
	}
	enforce interface {
		fill(l *api.Lease, enforced bool)
		overuse(l *lease.Lease) quota.Overuse
	}
	leases interface {
		endedLeases() []endedLease
	}
}

var _ = gpu.UUID("")
