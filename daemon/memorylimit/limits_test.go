package memorylimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

const gib = uint64(1 << 30)

// fakeDriver limits cgroups, which are directories. With dmem it writes the limit to the file of the controller, as the
// driver does with the kernel's.
type fakeDriver struct {
	dmem bool

	mu     sync.Mutex
	limits map[string]uint64
	sets   int
	fail   func(op, dir string) error
}

func (d *fakeDriver) refused(op, dir string) error {
	if d.fail != nil {
		if err := d.fail(op, dir); err != nil {
			return &gpu.Error{Op: op, Err: err}
		}
	}
	return nil
}

func (d *fakeDriver) MemoryLimit(_ context.Context, _ gpu.UUID, dir string) (gpu.MemoryLimit, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refused("read", dir); err != nil {
		return gpu.MemoryLimit{}, err
	}
	if hard, ok := d.limits[dir]; ok {
		return gpu.MemoryLimit{Hard: &hard}, nil
	}
	return gpu.MemoryLimit{}, nil
}

func (d *fakeDriver) SetMemoryLimit(_ context.Context, _ gpu.UUID, dir string, hard *uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sets++
	if err := d.refused("set", dir); err != nil {
		return err
	}
	text := "region max\n"
	if hard == nil {
		delete(d.limits, dir)
	} else {
		d.limits[dir] = *hard
		text = fmt.Sprintf("region %d\n", *hard)
	}
	if d.dmem {
		return os.WriteFile(filepath.Join(dir, "dmem.max"), []byte(text), 0o644)
	}
	return nil
}

type lastNode struct{ node *observe.Node }

func (n *lastNode) Last() *observe.Node { return n.node }

// fixture is Limits on directories, with one time-sliced GPU and leases of a grant of red.
type fixture struct {
	*Limits
	t         *testing.T
	driver    *fakeDriver
	node      *observe.Node
	now       time.Time
	corrected []string
}

// inDirectories isolates leases in directories of their names.
type inDirectories struct{ f *fixture }

func (i inDirectories) Isolate(ctx context.Context, l lease.Lease, _ lease.Process) (lease.IsolationResult, error) {
	if err := i.f.Prepare(ctx, &l); err != nil {
		return lease.IsolationResult{}, err
	}
	if l.Kept() {
		return lease.IsolationResult{Status: api.IsolationStatus{Cgroup: l.Cgroup}}, nil
	}
	cg := "/red/part/" + l.ID
	i.f.mkdir(cg)
	return lease.IsolationResult{Status: api.IsolationStatus{Cgroup: cg}}, i.f.Begin(ctx, &l, cg)
}

func (i inDirectories) RemoveIsolation(ctx context.Context, l lease.Lease) error {
	i.f.End(ctx, &l)
	return nil
}

func (f *fixture) mkdir(cg string) {
	f.t.Helper()
	if err := os.MkdirAll(f.Hierarchy.Dir(cg), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

func newFixture(t *testing.T, dmem bool, accept string) *fixture {
	t.Helper()
	stored := storetest.Open(t)
	f := &fixture{t: t, driver: &fakeDriver{dmem: dmem, limits: map[string]uint64{}}, now: time.Unix(1000, 0)}
	f.node = &observe.Node{
		GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-1"}, Memory: gpu.Memory{Total: 40 * gib}}}},
		Slices: []cgroup.SliceState{
			{Name: cgroup.SliceName{Tenant: "red"}, Path: "/red"},
			{Name: cgroup.SliceName{Tenant: "red", Grant: "part"}, Path: "/red/part"},
		},
	}
	f.Limits = &Limits{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), func() time.Time { return f.now }),
		State:    state.NewState(stored, false),
		Driver:   f.driver,
		Observer: &lastNode{
			f.node,
		},
		Hierarchy: &cgroup.Hierarchy{Mount: t.TempDir()},
		Overuse:   func(*lease.Lease) quota.OverusePolicy { return quota.OveruseKill },
	}
	f.mkdir("/red/part")
	f.Table = lease.New(lease.Config{Isolation: inDirectories{f}})
	f.spec(8*gib, accept)
	return f
}

// spec puts a limit in force and converges.
func (f *fixture) spec(limit uint64, accept string) {
	f.t.Helper()
	memory := api.Bytes(limit)
	grant := api.GrantSpec{Name: "part", Timeslice: &api.ShareSpec{Share: 50, GPUMemory: &memory}, Accept: accept}
	f.State.SetDesired(&state.Desired{
		Generation: f.State.Desired().Generation + 1,
		Spec:       &api.Spec{Node: api.NodeSpec{Enforce: "on"}, Tenants: []api.TenantSpec{{Name: "red", Grants: []api.GrantSpec{grant}}}},
		GPUs:       map[gpu.UUID]*api.GPUSpec{"GPU-1": {Mode: api.ModeTimeslice}},
	})
	f.update()
	f.converge()
	f.update()
}

func (f *fixture) update() {
	d := f.State.Desired()
	v := lease.View{
		Generation: d.Generation,
		GPUs:       []lease.GPUView{{UUID: "GPU-1", Mode: api.ModeTimeslice, Capacity: 40 * gib}},
		Grants:     []lease.Grant{{Tenant: "red", Spec: d.Spec.Tenants[0].Grants[0]}},
	}
	planner.DescribeHardMemory(&v, f.hardMemoryOf)
	f.Table.Update(v)
}

func (f *fixture) converge() {
	f.Converge(f.t.Context(), f.node, func(_, _, text string) { f.corrected = append(f.corrected, text) })
}

// later converges after the interval at which all limits are read.
func (f *fixture) later() {
	f.now = f.now.Add(readInterval)
	f.converge()
}

func (f *fixture) start() (lease.Lease, error) {
	f.t.Helper()
	ticket, err := f.Table.Submit(lease.Request{Tenant: "red", Member: []string{"red"}, Command: []string{"x"}})
	if err != nil {
		return lease.Lease{}, err
	}
	l, _, err := f.Table.Start(f.t.Context(), ticket.ID(), lease.Process{PID: 1, Start: 1})
	return l, err
}

func (f *fixture) mustStart() lease.Lease {
	f.t.Helper()
	l, err := f.start()
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

// has compares the limits in GiB by cgroup.
func (f *fixture) has(want map[string]uint64) {
	f.t.Helper()
	got := map[string]uint64{}
	for dir, hard := range f.driver.limits {
		got[strings.TrimPrefix(dir, f.Hierarchy.Mount)] = hard / gib
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("limits in GiB (-want +got):\n%s", diff)
	}
}

func (f *fixture) choice(l *lease.Lease, backend quota.MemoryBackend, hard bool, says string) {
	f.t.Helper()
	if c := f.Choice(l); c.Backend != backend || c.Hard != hard || !strings.Contains(c.Reason, says) {
		f.t.Errorf("%+v, want %s, hard %v, %q", c, backend, hard, says)
	}
}

func TestLimitsOfALease(t *testing.T) {
	f := newFixture(t, false, "")
	f.has(map[string]uint64{"/red/part": 8})
	l := f.mustStart()
	f.has(map[string]uint64{"/red/part": 8, "/red/part/" + l.ID: 8})
	f.choice(&l, quota.BackendDriver, true, "read back")
	sets := f.driver.sets
	for range 3 {
		f.later()
	}
	if f.driver.sets != sets {
		t.Errorf("converging again made %d writes", f.driver.sets-sets)
	}
	f.spec(10*gib, "")
	f.has(map[string]uint64{"/red/part": 10, "/red/part/" + l.ID: 10})
	if len(f.corrected) != 0 {
		t.Errorf("a new spec counts as drift: %q", f.corrected)
	}
	if err := f.Table.Ended(t.Context(), l.ID, "test"); err != nil {
		t.Fatal(err)
	}
	f.has(map[string]uint64{"/red/part": 10})
}

func TestDriftIsCorrectedOnce(t *testing.T) {
	f := newFixture(t, false, "")
	l := f.mustStart()
	leaf := f.Hierarchy.Dir("/red/part/" + l.ID)
	f.driver.limits[leaf] = 30 * gib
	f.converge() // Within the interval nothing is read again.
	f.later()
	f.later()
	f.has(map[string]uint64{"/red/part": 8, "/red/part/" + l.ID: 8})
	want := []string{"the GPU-memory limit of lease " + l.ID + ": 8 GiB → 30 GiB"}
	if diff := cmp.Diff(want, f.corrected); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestANewDaemonAdoptsLimits: a daemon that has just started sets nothing that is as desired, and removes what is not.
func TestANewDaemonAdoptsLimits(t *testing.T) {
	f := newFixture(t, false, "")
	l := f.mustStart()
	f.driver.limits[f.Hierarchy.Dir("/red/old")] = gib
	f.mkdir("/red/old")
	f.node.Slices = append(f.node.Slices, cgroup.SliceState{Name: cgroup.SliceName{Tenant: "red", Grant: "old"}, Path: "/red/old"})
	before := f.driver.sets
	f.known, f.abilities, f.swept = nil, nil, 0
	f.choice(&l, quota.BackendReactive, false, "not read back yet")
	f.later()
	f.choice(&l, quota.BackendDriver, true, "")
	f.has(map[string]uint64{"/red/part": 8, "/red/part/" + l.ID: 8})
	if f.driver.sets != before+1 || len(f.corrected) != 0 {
		t.Errorf("%d writes, want the removal of the former limit; corrected %q", f.driver.sets-before, f.corrected)
	}
}

// TestLeasesTogether: with dmem the limit of the slice holds for all leases of the grant; otherwise the limit of two leases is not
// called hard, and a grant that accepts nothing else gets one.
func TestLeasesTogether(t *testing.T) {
	for _, dmem := range []bool{true, false} {
		t.Run(fmt.Sprintf("dmem %v", dmem), func(t *testing.T) {
			f := newFixture(t, dmem, "")
			first, second := f.mustStart(), f.mustStart()
			for _, l := range []lease.Lease{first, second} {
				says := "each of the grant's 2 leases alone"
				if dmem {
					says = "refuses allocations"
				}
				f.choice(&l, quota.BackendDriver, dmem, says)
			}
			f = newFixture(t, dmem, api.AcceptHard)
			f.mustStart()
			_, err := f.start()
			if dmem != (err == nil) || err != nil && !strings.Contains(err.Error(), "limits each lease alone") {
				t.Errorf("the second lease: %v", err)
			}
		})
	}
}

// TestWhatIsNotReadBackIsNotShown lets each call fail, or read back something else.
func TestWhatIsNotReadBackIsNotShown(t *testing.T) {
	for _, c := range []struct {
		name   string
		fail   func(f *fixture) func(op, dir string) error
		reason string
	}{
		{"older driver", func(*fixture) func(op, dir string) error {
			return func(string, string) error { return gpu.ErrMissing }
		}, "older than R615"},
		{"no accounting", func(*fixture) func(op, dir string) error {
			return func(string, string) error { return gpu.ErrNotSupported }
		}, "does not account"},
		{"no dmem files", func(*fixture) func(op, dir string) error {
			return func(op, _ string) error {
				if op == "set" {
					return gpu.ErrNotFound
				}
				return nil
			}
		}, "lacks the dmem controller"},
		{"set fails", func(*fixture) func(op, dir string) error {
			return func(op, _ string) error {
				if op == "set" {
					return gpu.ErrDenied
				}
				return nil
			}
		}, "no permission"},
		{"read fails", func(*fixture) func(op, dir string) error {
			return func(op, _ string) error {
				if op == "read" {
					return gpu.ErrTimeout
				}
				return nil
			}
		}, "did not answer in time"},
		{"another limit reads back", func(f *fixture) func(op, dir string) error {
			return func(op, dir string) error {
				if op == "read" && f.driver.limits[dir] == 8*gib {
					f.driver.limits[dir] = 9 * gib
				}
				return nil
			}
		}, "was set to 8 GiB and reads back as 9 GiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, false, "")
			f.driver.limits = map[string]uint64{}
			f.known, f.abilities, f.swept = nil, nil, 0
			f.driver.fail = c.fail(f)
			f.later()
			f.update()
			l := f.mustStart()
			f.choice(&l, quota.BackendReactive, false, c.reason)
			f.later()
			f.choice(&l, quota.BackendReactive, false, c.reason)
			f.spec(8*gib, api.AcceptHard)
			if _, err := f.start(); err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("a grant that accepts only a hard limit: %v", err)
			}
			// When the calls succeed again, the limit is set.
			f.driver.fail = nil
			f.now = f.now.Add(retryInterval)
			f.later()
			f.choice(&l, quota.BackendDriver, true, "")
			f.has(map[string]uint64{"/red/part": 8, "/red/part/" + l.ID: 8})
		})
	}
}

// TestADriverWithoutLimitsIsNotTriedAgain: each try would be a write.
func TestADriverWithoutLimitsIsNotTriedAgain(t *testing.T) {
	f := newFixture(t, false, "")
	f.driver.fail = func(string, string) error { return gpu.ErrNotSupported }
	f.known, f.abilities, f.swept = nil, nil, 0
	f.later()
	sets := f.driver.sets
	for range 3 {
		f.later()
	}
	l := f.mustStart()
	if f.driver.sets != sets {
		t.Errorf("%d more writes", f.driver.sets-sets)
	}
	f.choice(&l, quota.BackendReactive, false, "does not account")
	f.node.Driver.Missing = []string{"nvmlDeviceSetMemoryLimits_v1"}
	f.driver.fail = func(string, string) error { return errors.New("called although the library lacks the function") }
	f.spec(9*gib, "")
	f.choice(&l, quota.BackendReactive, false, "older than R615")
}

// TestADriverThatDoesNotAnswer: what was read back before is not shown any more.
func TestADriverThatDoesNotAnswer(t *testing.T) {
	for name, change := range map[string]func(n *observe.Node) string{
		"the driver": func(n *observe.Node) string { n.DriverErr = gpu.ErrStuck; return "the driver does not answer" },
		"the GPU":    func(n *observe.Node) string { n.GPUs[0].Err = gpu.ErrTimeout; return "the GPU does not answer" },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, false, "")
			l := f.mustStart()
			good := *f.node
			good.GPUs = append([]observe.GPU{}, f.node.GPUs...)
			reason := change(f.node)
			f.later()
			f.choice(&l, quota.BackendReactive, false, reason)
			sets := f.driver.sets
			*f.node = good
			f.later()
			f.choice(&l, quota.BackendDriver, true, "")
			if f.driver.sets != sets {
				t.Errorf("%d writes after it answered again", f.driver.sets-sets)
			}
		})
	}
}

// TestARemovedCgroupIsForgotten: its limits are removed with it.
func TestARemovedCgroupIsForgotten(t *testing.T) {
	f := newFixture(t, false, "")
	l := f.mustStart()
	dir := f.Hierarchy.Dir("/red/part/" + l.ID)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	delete(f.driver.limits, dir)
	f.driver.fail = func(_, at string) error {
		if at == dir {
			return gpu.ErrInvalid
		}
		return nil
	}
	f.later()
	if got := maps.Clone(f.known); len(got) != 1 {
		t.Errorf("known are %+v", got)
	}
}

// kept starts a kept lease with these cgroups.
func (f *fixture) kept(cgroups ...string) lease.Lease {
	f.t.Helper()
	ticket, err := f.Table.Submit(lease.Request{
		Tenant: "red", Admin: true, Origin: lease.OriginAttached, Engine: &lease.Engine{Key: "kubernetes:1", Kept: true},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, cg := range cgroups {
		f.mkdir(cg)
		if !f.Table.NameCgroup(ticket.ID(), cg) {
			f.t.Fatalf("it does not get cgroup %s", cg)
		}
	}
	l, _, err := f.Table.Start(f.t.Context(), ticket.ID(), lease.Process{PID: 1, Start: 1})
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

func TestUnmanagedNodeKeepsNoLimitOfAFurtherCgroup(t *testing.T) {
	f := newFixture(t, false, "")
	f.kept("/pods/one", "/pods/two", "/pods/three")
	f.later()
	if n, err := f.Attached(t.Context()); n != 3 || err != nil {
		t.Errorf("%d limits, %v", n, err)
	}
	if err := os.RemoveAll(f.Hierarchy.Dir("/pods/one")); err != nil { // The first pod has ended.
		t.Fatal(err)
	}
	delete(f.driver.limits, f.Hierarchy.Dir("/pods/one"))
	if n, err := f.Attached(t.Context()); n != 2 || err != nil {
		t.Errorf("without the first pod: %d limits, %v", n, err)
	}
	if err := f.RemoveAttached(t.Context()); err != nil {
		t.Error(err)
	}
	if n, err := f.Attached(t.Context()); n != 0 || err != nil {
		t.Errorf("%d limits are left, %v", n, err)
	}
}

// The cgroup of a pod that ended keeps no later pod of the claim from a hard limit.
func TestCgroupOfAPodThatEndedIsNotCounted(t *testing.T) {
	f := newFixture(t, false, api.AcceptHard)
	l := f.kept("/pods/one", "/pods/two")
	f.later()
	f.choice(&l, quota.BackendReactive, false, "it has 2 cgroups")
	if err := f.Begin(t.Context(), &l, "/pods/two"); err == nil {
		t.Error("two pods together have a hard limit")
	}
	if err := os.RemoveAll(f.Hierarchy.Dir("/pods/one")); err != nil {
		t.Fatal(err)
	}
	delete(f.driver.limits, f.Hierarchy.Dir("/pods/one"))
	f.choice(&l, quota.BackendReactive, false, "it has 2 cgroups") // It may come yet.
	f.mkdir("/pods/one")
	if !f.Table.SetBegun(l.ID, f.Hierarchy.Exists) || f.Table.SetBegun(l.ID, f.Hierarchy.Exists) {
		t.Error("it is not known once that the cgroups are there")
	}
	if err := os.RemoveAll(f.Hierarchy.Dir("/pods/one")); err != nil {
		t.Fatal(err)
	}
	l, _ = f.Table.Get(l.ID)
	if err := f.Begin(t.Context(), &l, "/pods/two"); err != nil {
		t.Errorf("the second pod alone: %v", err)
	}
	f.later()
	f.choice(&l, quota.BackendDriver, true, "")
}

func TestUnmanagedNodeKeepsNoAttachedLimit(t *testing.T) {
	f := newFixture(t, false, "")
	if n, err := f.Attached(t.Context()); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	f.mustStart()
	if n, err := f.Attached(t.Context()); n != 0 || err != nil {
		t.Errorf("a lease in a cgroup of gpushare: %d, %v", n, err)
	}
}

func TestRefuse(t *testing.T) {
	f := newFixture(t, false, api.AcceptHard)
	if err := f.Refuse(f.State.Desired(), f.node); err != nil {
		t.Errorf("a driver that has limits: %v", err)
	}
	f.node.Driver.Missing = []string{"nvmlDeviceSetMemoryLimits_v1"}
	var e *api.Error
	if err := f.Refuse(f.State.Desired(), f.node); !errors.As(err, &e) || e.Kind != api.KindInfeasible ||
		!strings.Contains(e.Message, "GPU 0: the driver is older than R615") {
		t.Errorf("an older driver: %v", err)
	}
}
