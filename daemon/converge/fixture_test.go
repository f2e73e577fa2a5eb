package converge

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/cgrouptest"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
	"github.com/gpushare/gpushare/power"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// idleDriver is a host without a GPU. It counts the observations.
type idleDriver struct {
	gpu.Driver   // not called
	observations atomic.Int64
}

func (d *idleDriver) Node(context.Context) (gpu.NodeInfo, error) {
	d.observations.Add(1)
	return gpu.NodeInfo{}, nil
}

func (d *idleDriver) Events(ctx context.Context, _ func(gpu.Event)) error {
	<-ctx.Done()
	return ctx.Err()
}

// idleChanges carries out no change. It counts the passes.
type idleChanges struct {
	passes atomic.Int64
	busy   bool // it cannot compare the node
}

func (c *idleChanges) Restore(*observe.Node) bool   { c.passes.Add(1); return !c.busy }
func (c *idleChanges) RestartUnits(context.Context) {}

// Check compares no file.
func (c *idleChanges) Check(context.Context) {}

func (c *idleChanges) RemainingSteps(*observe.Node) (n int, first string, err error) {
	return 0, "", nil
}

// noLimits limits no GPU memory.
type noLimits struct{}

func (noLimits) Converge(context.Context, *observe.Node, func(tenant, lease, text string)) {}
func (noLimits) HardMemory() map[gpu.UUID]state.HardMemory                                 { return nil }

// noFaults reports no fault of MPS.
type noFaults struct{}

func (noFaults) Run(context.Context)    {}
func (noFaults) Converge(*observe.Node) {}

// healthy has GPUs without trouble.
type healthy struct{}

func (healthy) XID(gpu.Event)          {}
func (healthy) Converge(*observe.Node) {}

// noAccess leaves the sockets of MPS as they are.
type noAccess struct{}

func (noAccess) Run(context.Context) {}

func (noAccess) Converge(context.Context, *observe.Node, func(tenant, lease, text string)) {}

// countingWatchdog is a service manager whose watchdog counts.
type countingWatchdog struct {
	notified atomic.Int64
	failing  atomic.Bool
	interval time.Duration
	said     []string
}

func (d *countingWatchdog) Watchdog() error {
	if d.failing.Load() {
		return errors.New("no request is answered")
	}
	d.notified.Add(1)
	return nil
}

func (d *countingWatchdog) WatchdogInterval() time.Duration { return d.interval }
func (d *countingWatchdog) Status(text string) error        { d.said = append(d.said, text); return nil }

// fixture is a Converger on slices in memory, with a spec in force.
type fixture struct {
	*Converger
	port     *cgrouptest.Memory
	driver   *idleDriver
	changes  *idleChanges
	watchdog *countingWatchdog
	use      map[cgroup.SliceName]isolation.Use
}

func newFixture(t *testing.T, document string) *fixture {
	t.Helper()
	stored := storetest.Open(t)
	w := &fixture{
		port:     cgrouptest.NewMemory(),
		driver:   &idleDriver{},
		changes:  &idleChanges{},
		watchdog: &countingWatchdog{interval: 20 * time.Second},
	}
	w.port.Policy = &cgrouptest.Policy{}
	root := t.TempDir()
	rep := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	st := state.NewState(stored, false)
	table := lease.New(lease.Config{Isolation: leasetest.NoIsolation{}})
	observer := &observe.Observer{Driver: w.driver, Slices: w.port, HostRoot: root, Now: time.Now}
	logins := devicepolicy.NewLoginFilter(cgroup.Hierarchy{}, "", root, cgroup.Info{})
	signal := loop.NewWake()
	w.Converger = &Converger{
		Files:    &idleChanges{},
		Reporter: rep,
		State:    st,
		Driver:   w.driver,
		Observer: observer,
		Port:     w.port,
		Table:    table,
		Notify:   w.watchdog,
		Logins:   logins,
		Signal:   signal,
		Wake:     signal.Set,
		Engine: &engine.Engine{Handlers: engine.Handlers{
			isolation.KindSet: &isolation.Handler{
				Slices: w.port,
			},
			isolation.KindRemove:  &isolation.Handler{Slices: w.port},
			planner.KindMigration: bus{w.port.Policy},
		}},
		ConvergeInterval: func() time.Duration { return time.Minute },
		ThawReady:        func() error { return nil },
		Changes:          w.changes,
		Unmanage:         w.changes,
		MemoryLimits:     noLimits{},
		MPSAccess:        noAccess{},
		MPSFaults:        noFaults{},
		Health:           healthy{},
		Power:            &power.Caps{Dir: root, Now: time.Now},
		Identities:       server.NewIdentities(rep, &loop.Group{}, servertest.UidSelf, "off"),
		Attribution:      &attribution.Attribution{Reporter: rep, State: st, Port: w.port, Observer: observer, Table: table},
		Policy: &devicepolicy.Policy{
			Reporter: rep,
			HostRoot: root,
			CDIDir:   t.TempDir(),
			State:    st,
			Port:     w.port,
			Observer: observer,
			Table:    table,
			Logins:   logins,
			Hosts:    &isolation.HostCache{Root: root},
			SliceUse: func(*observe.Node) map[cgroup.SliceName]isolation.Use { return w.use },
		},
	}
	s, err := spec.Decode("node.yaml", []byte(document))
	if err != nil {
		t.Fatal(err)
	}
	s.Normalize()
	st.SetDesired(state.DesiredOf(s, spec.Resolved{}, 1))
	return w
}

// bus sets the policy in memory.
type bus struct{ policy *cgrouptest.Policy }

func (b bus) Applied(context.Context, step.Step) (bool, error) { return b.policy.MigrationDenied() }
func (b bus) Do(ctx context.Context, _ step.Step) error        { return b.policy.DenyMigration(ctx) }

func (b bus) Undo(ctx context.Context, _ step.Step) error { return b.policy.AllowMigration(ctx) }
