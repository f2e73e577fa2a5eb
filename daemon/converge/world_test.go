package converge

import (
	"context"
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
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quietDriver is a host without a GPU. It counts the looks at it.
type quietDriver struct {
	gpu.Driver // What no test reaches for.
	looks      atomic.Int64
}

func (d *quietDriver) Node(context.Context) (gpu.NodeInfo, error) {
	d.looks.Add(1)
	return gpu.NodeInfo{}, nil
}

func (d *quietDriver) Events(ctx context.Context, _ func(gpu.Event)) error {
	<-ctx.Done()
	return ctx.Err()
}

// idleChanges carries out no change. It counts how often the loop came by.
type idleChanges struct{ asked atomic.Int64 }

func (c *idleChanges) Restore(*observe.Node)        { c.asked.Add(1) }
func (c *idleChanges) RestartUnits(context.Context) {}
func (c *idleChanges) RemainingSteps(*observe.Node) (n int, first string, err error) {
	return 0, "", nil
}

// dog is a watchdog that counts.
type dog struct{ told atomic.Int64 }

func (d *dog) Watchdog() error { d.told.Add(1); return nil }

// world is a loop on slices in memory, with a spec in force.
type world struct {
	*Converger
	port    *cgrouptest.Memory
	driver  *quietDriver
	changes *idleChanges
	dog     *dog
	use     map[cgroup.SliceName]isolation.Use
}

func newWorld(t *testing.T, document string) *world {
	t.Helper()
	kept, _, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kept.Close() })
	w := &world{port: cgrouptest.NewMemory(), driver: &quietDriver{}, changes: &idleChanges{}, dog: &dog{}}
	w.port.Policy = &cgrouptest.Policy{}
	root := t.TempDir()
	rep := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	st := state.NewState(kept, false)
	table := lease.New(lease.Config{Isolation: leasetest.NoIsolation{}})
	look := &observe.Observer{Driver: w.driver, Slices: w.port, HostRoot: root, Now: time.Now}
	logins := devicepolicy.NewLoginFilter(cgroup.Hierarchy{}, "", root, cgroup.Info{})
	kicks := loop.NewWake()
	w.Converger = &Converger{
		Reporter: rep, State: st, Driver: w.driver, Observer: look, Port: w.port, Table: table, Notify: w.dog, Logins: logins, Kicks: kicks, Kick: kicks.Set,
		Engine: &engine.Engine{Handlers: engine.Handlers{
			isolation.KindSet: &isolation.Handler{Slices: w.port}, isolation.KindRemove: &isolation.Handler{Slices: w.port}, planner.KindMigration: bus{w.port.Policy},
		}},
		ConvergeInterval: func() time.Duration { return time.Minute }, GuardReady: func() error { return nil }, Changes: w.changes,
		Identities:  server.NewIdentities(rep, &loop.Group{}, "off"),
		Attribution: &attribution.Attribution{Reporter: rep, State: st, Port: w.port, Observer: look, Table: table},
		Policy: &devicepolicy.Policy{
			Reporter: rep, HostRoot: root, CDIDir: t.TempDir(), State: st, Port: w.port, Observer: look, Table: table, Logins: logins, Hosts: &isolation.HostCache{Root: root},
			SliceUse: func(*observe.Node) map[cgroup.SliceName]isolation.Use { return w.use },
		},
	}
	s, err := spec.Decode("node.yaml", []byte(document))
	if err != nil {
		t.Fatal(err)
	}
	s.Normalize()
	st.SetDesired(state.WantOf(s, spec.Resolved{}, 1))
	return w
}

// bus sets the policy in memory.
type bus struct{ policy *cgrouptest.Policy }

func (b bus) Applied(context.Context, step.Step) (bool, error) { return b.policy.MigrationDenied() }
func (b bus) Do(ctx context.Context, _ step.Step) error        { return b.policy.DenyMigration(ctx) }

func (b bus) Undo(ctx context.Context, _ step.Step) error { return b.policy.AllowMigration(ctx) }
