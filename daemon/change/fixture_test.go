package change

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/cgrouptest"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/specs"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/unmanage"
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

// noGPUs is a host without a GPU.
type noGPUs struct{ gpuDriver }

func (noGPUs) Node(context.Context) (gpu.NodeInfo, error) { return gpu.NodeInfo{}, nil }

// idleConverger is a converge loop that finds nothing to do. It counts the changes that ended with it.
type idleConverger struct{ ends atomic.Int64 }

func (c *idleConverger) Correct(context.Context) error               { return nil }
func (c *idleConverger) Converge(context.Context, []step.Step) error { c.ends.Add(1); return nil }
func (c *idleConverger) Refresh(context.Context, *observe.Node)      {}

// unlimitedMemory has no limits of GPU memory.
type unlimitedMemory struct{}

func (unlimitedMemory) Attached(context.Context) (int, error) { return 0, nil }
func (unlimitedMemory) RemoveAttached(context.Context) error  { return nil }

func (unlimitedMemory) Refuse(*state.Desired, *observe.Node) error { return nil }

// unlimited has no login with limits.
type unlimited struct{}

func (unlimited) LimitedUsers() (int, error)     { return 0, nil }
func (unlimited) AdoptAll(context.Context) error { return nil }

// fixture is Changes on slices in memory.
type fixture struct {
	*Changes
	*testing.T
	unmanaging    *unmanage.Unmanaging
	port          *cgrouptest.Memory
	idleConverger *idleConverger
	stop          context.CancelFunc
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	stored := storetest.Open(t)
	ctx, stop := context.WithCancel(t.Context())
	w := &fixture{T: t, port: cgrouptest.NewMemory(), idleConverger: &idleConverger{}, stop: stop}
	w.port.Policy = &cgrouptest.Policy{}
	root, cdi := t.TempDir(), t.TempDir()
	rep := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	st := state.NewState(stored, false)
	table := lease.New(lease.Config{Isolation: leasetest.NoIsolation{}})
	observer := &observe.Observer{Driver: noGPUs{}, Slices: w.port, HostRoot: root, Now: time.Now}
	logins := devicepolicy.NewLoginFilter(cgroup.Hierarchy{}, "", root, cgroup.Info{})
	tasks := &loop.Group{}
	tasks.Begin(ctx)
	attributed := &attribution.Attribution{
		Reporter:    rep,
		HostRoot:    root,
		State:       st,
		Port:        w.port,
		Observer:    observer,
		Table:       table,
		Follow:      w.port.Processes,
		Attachments: cgroup.NewAttachments(cgroup.AttachmentsOptions{}),
		WorkerPID:   func() int { return 0 },
		Hosts:       &isolation.HostCache{Root: root},
	}
	identities := server.NewIdentities(rep, tasks, servertest.UidSelf, "off")
	w.Changes = &Changes{
		Reporter:    rep,
		Settings:    Settings{HostRoot: root},
		State:       st,
		Tasks:       tasks,
		Driver:      noGPUs{},
		Observer:    observer,
		Table:       table,
		Attribution: attributed,
		Converger:   w.idleConverger,
		Memory:      unlimitedMemory{},
		Power:       &power.Caps{Dir: t.TempDir(), Now: time.Now},
		Wake:        func() {},
		Idle:        func() {},
		Identities:  identities,
		Specs:       &specs.Specs{Reporter: rep, State: st, Identities: identities},
		Policy: &devicepolicy.Policy{
			Reporter: rep,
			HostRoot: root,
			CDIDir:   cdi,
			State:    st,
			Port:     w.port,
			Observer: observer,
			Table:    table,
			Logins:   logins,
			Hosts:    attributed.Hosts,
			SliceUse: attributed.SliceUse,
		},
	}
	w.unmanaging = &unmanage.Unmanaging{
		Reporter:    rep,
		CDIDir:      cdi,
		State:       st,
		Tasks:       tasks,
		Port:        w.port,
		Observer:    observer,
		Table:       table,
		Logins:      logins,
		Attribution: attributed,
		Policy:      w.Policy,
		Power:       w.Power,
		Changes:     w.Changes,
		Memory:      unlimitedMemory{},
		Adopter:     unlimited{},
	}
	w.Unmanage = w.unmanaging
	w.Identities.Spec = func() *api.Spec { return st.Desired().Spec }
	slices, bus := &isolation.Handler{Slices: w.port}, devicepolicy.MigrationPolicy{Port: w.port}
	w.Engine = &engine.Engine{Handlers: engine.Handlers{
		isolation.KindSet: slices, isolation.KindRemove: slices, planner.KindMigration: bus,
	}}
	t.Cleanup(func() {
		stop()
		tasks.Wait()
	})
	return w
}

// apply proposes a spec, accepts it and waits for its end. It returns the ended operation; nil without one.
func (w *fixture) apply(document string) *api.Operation {
	w.Helper()
	s, err := spec.Decode("node.yaml", []byte(document))
	if err != nil {
		w.Fatal(err)
	}
	p, err := w.propose(w.Context(), spec.NewDocument("node.yaml", []byte(document), s), nil, planner.Authority{})
	if err != nil {
		w.Fatal(err)
	}
	return w.carriedOut(p)
}

func (w *fixture) carriedOut(p *state.Proposal) *api.Operation {
	w.Helper()
	op, err := w.Accept(w.Context(), p, "root", planner.Authority{})
	if err != nil {
		w.Fatal(err)
	}
	if op == nil {
		return nil
	}
	w.Tasks.Wait()
	return w.operation(op.ID)
}

func (w *fixture) operation(id string) *api.Operation {
	w.Helper()
	op, ok := w.Operations.Get(w.Context(), id, 0)
	if !ok {
		w.Fatalf("there is no operation %s", id)
	}
	return &op
}
