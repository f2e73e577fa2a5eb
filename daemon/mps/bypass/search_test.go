package bypass

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/mps"
)

// fixture is one GPU in MPS mode and the search on it, in a time that the test sets.
type fixture struct {
	Search
	want *state.Desired
	node observe.Node
	now  time.Time
}

func newFixture(bypass string) *fixture {
	g := observetest.Device(false)
	g.MIG.Current = false
	return &fixture{
		want: &state.Desired{
			Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}},
			GPUs: map[gpu.UUID]*api.GPUSpec{g.Identity.UUID: {Mode: api.ModeMPS, MPS: &api.MPSSpec{Bypass: bypass}}},
		},
		node: observe.Node{GPUs: []observe.GPU{g}},
		now:  time.Unix(1e9, 0),
	}
}

// lists sets the driver's list.
func (f *fixture) lists(kind gpu.ProcessKind, pids ...int) {
	f.node.GPUs[0].Processes = nil
	for _, pid := range pids {
		f.node.GPUs[0].Processes = append(f.node.GPUs[0].Processes, gpu.Process{PID: pid, Kind: kind})
	}
}

// isDue passes some time and reports whether a check is due.
func (f *fixture) isDue(d time.Duration) bool {
	f.now = f.now.Add(d)
	return len(f.due(f.want, &f.node, f.now)) == 1
}

// check ends a check that was due: not are the pids that are no clients.
func (f *fixture) check(not []int, err error, contexts ...leasedContext) (found []leasedContext, stops map[string][]leasedContext) {
	id := f.node.GPUs[0].Identity.UUID
	return f.end(mps.Whole(id), contexts, not, err, f.want.Bypass(id), f.now)
}

func contextOf(pid int) leasedContext {
	return leasedContext{process: cgroup.Process{PID: pid, Start: uint64(pid)}, name: "python", lease: "a-1", tenant: "vision"}
}

// A process is found by the second of two readings in a row, and a client never.
func TestNeedsTwoReadings(t *testing.T) {
	t.Parallel()
	f := newFixture(api.BypassStop)
	if f.isDue(0) {
		t.Error("a check is due although no process is listed")
	}
	f.lists(gpu.ComputeProcess, 7, 8)
	if !f.isDue(time.Second) {
		t.Fatal("no check is due although the list is new")
	}
	if f.isDue(time.Second) {
		t.Error("a second check is due while the first one is under way")
	}
	if found, stops := f.check([]int{7}, nil, contextOf(7), contextOf(8)); len(found)+len(stops) != 0 {
		t.Errorf("after one reading %v are found and %v stopped", found, stops)
	}
	if !f.isDue(0) {
		t.Fatal("the second reading is not due at once")
	}
	found, stops := f.check([]int{7}, nil, contextOf(7), contextOf(8))
	if len(found) != 1 || found[0].process.PID != 7 || len(stops["a-1"]) != 1 {
		t.Errorf("found %v, stopped %v; want pid 7", found, stops)
	}
	f.isDue(time.Hour)
	if found, stops = f.check([]int{7}, nil, contextOf(7), contextOf(8)); len(found)+len(stops) != 0 {
		t.Errorf("while it is being stopped %v are found and %v stopped", found, stops)
	}
	f.stopped(mps.Whole(f.node.GPUs[0].Identity.UUID), []leasedContext{contextOf(7)})
	f.isDue(time.Hour)
	if _, stops = f.check([]int{7}, nil, contextOf(7)); len(stops["a-1"]) != 1 {
		t.Error("what survived its stop is not stopped again")
	}
}

// A process that joins between two readings is no bypass, and neither is one while the clients cannot be read.
func TestNoBypass(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		not  [][]int // of each reading; nil: it fails
	}{
		{"it joins", [][]int{{7}, {}, {7}, {}}},
		{"readings fail", [][]int{nil, nil, nil, nil}},
	} {
		f := newFixture(api.BypassStop)
		f.lists(gpu.ComputeProcess, 7)
		for i, not := range c.not {
			var err error
			if not == nil {
				err = errors.New("no answer")
			}
			if !f.isDue(time.Hour) {
				t.Fatalf("%s: check %d is not due", c.name, i)
			}
			if found, stops := f.check(not, err, contextOf(7)); len(found)+len(stops) != 0 {
				t.Errorf("%s: found %v, stopped %v", c.name, found, stops)
			}
		}
		conditions := f.conditions(f.want)
		if unknown := len(conditions) == 1; unknown != (c.not[0] == nil) {
			t.Errorf("%s: the conditions are %v", c.name, conditions)
		}
	}
}

// The same list is not read again for a while, unless the spec or the list has changed: a process in another list of the driver may
// have executed another program.
func TestIsReadAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(f *fixture)
		after  time.Duration
		want   bool
	}{
		{"nothing", func(*fixture) {}, verifiedFor - time.Second, false},
		{"time", func(*fixture) {}, verifiedFor, true},
		{"a process", func(f *fixture) { f.lists(gpu.MPSProcess, 7, 8) }, time.Second, true},
		{"its list", func(f *fixture) { f.lists(gpu.ComputeProcess, 7) }, time.Second, true},
		{"the spec", func(f *fixture) {
			f.want = newFixture(api.BypassStop).want
		}, time.Second, true},
		{"the mode", func(f *fixture) {
			f.want.GPUs[f.node.GPUs[0].Identity.UUID].Mode = api.ModeTimeslice
		}, time.Hour, false},
	} {
		f := newFixture(api.BypassReport)
		f.lists(gpu.MPSProcess, 7)
		if !f.isDue(0) {
			t.Fatal("the first check is not due")
		}
		f.check([]int{}, nil, contextOf(7))
		c.change(f)
		if got := f.isDue(c.after); got != c.want {
			t.Errorf("%s changed: due is %v", c.name, got)
		}
	}
}

// In MIG mode each instance that is shared through MPS is searched for itself, with the processes that the driver reports in it, and with
// those of its leases where the driver reports no instance.
func TestInInstances(t *testing.T) {
	t.Parallel()
	f := newFixture(api.BypassStop)
	g := &f.node.GPUs[0]
	*g = observetest.Device(true,
		gpu.Instance{ID: 2, ProfileID: 9, Placement: gpu.Placement{Start: 4, Size: 4}},
		gpu.Instance{ID: 3, ProfileID: 14, Placement: gpu.Placement{Start: 0, Size: 2}})
	shared, other := &g.Instances[0], &g.Instances[1]
	profile := g.Profiles.GIName(shared.ProfileID)
	if profile == "" || profile == g.Profiles.GIName(other.ProfileID) {
		t.Fatalf("the instances have the profiles %q and %q", profile, g.Profiles.GIName(other.ProfileID))
	}
	f.want.GPUs = map[gpu.UUID]*api.GPUSpec{g.Identity.UUID: {
		Mode: api.ModeMIG, MIG: &api.MIGSpec{MPS: api.LayoutOf(profile)}, MPS: &api.MPSSpec{Bypass: api.BypassStop},
	}}
	parts := servedOf(f.want, g)
	if len(parts) != 1 || parts[0].device != (mps.Device{GPU: g.Identity.UUID, Instance: shared.Placement}) {
		t.Fatalf("searched is %+v", parts)
	}
	for _, c := range []struct {
		name         string
		gi           *uint32
		at           *gpu.Placement // of the lease
		has, compare bool
	}{
		{"in it", &shared.ID, &shared.Placement, true, true},
		{"in it, of a lease of another", &shared.ID, &other.Placement, true, true},
		{"in another", &other.ID, &other.Placement, false, false},
		{"in another, of a lease of it", &other.ID, &shared.Placement, false, false},
		{"not reported, of a lease of it", nil, &shared.Placement, true, true},
		{"not reported, of a lease of another", nil, &other.Placement, true, false},
		{"not reported, of a lease of a GPU", nil, nil, true, false},
	} {
		p := gpu.Process{PID: 7, Kind: gpu.ComputeProcess, GI: c.gi}
		if has := len(parts[0].of([]gpu.Process{p})) == 1; has != c.has {
			t.Errorf("%s: listed is %v", c.name, has)
		}
		if got := parts[0].leases(&p, c.at); got != c.compare {
			t.Errorf("%s: compared is %v", c.name, got)
		}
	}
	f.want.Spec = &api.Spec{Node: api.NodeSpec{Enforce: "observe"}}
	if parts := servedOf(f.want, g); len(parts) != 0 {
		t.Errorf("observed only, %+v is searched", parts)
	}
}

// The clients are not queried while the processes execute the same programs, but every few minutes.
func TestComparesPrograms(t *testing.T) {
	t.Parallel()
	self := contextOf(os.Getpid())
	var err error
	if self.image, err = procfs.ReadImage(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	other, hidden := self, self
	other.image.Stack++
	hidden.noImage = true
	for _, c := range []struct {
		name    string
		context leasedContext
		not     []int
		want    time.Duration // until the clients are read again
	}{
		{"the same program", self, nil, clientsFor},
		{"another program", other, nil, verifiedFor},
		{"a program that is not known", hidden, nil, verifiedFor},
		{"a process that bypasses MPS", self, []int{os.Getpid()}, verifiedFor},
	} {
		f := newFixture(api.BypassReport)
		f.lists(gpu.ComputeProcess, os.Getpid())
		for range readingsUntilFound {
			f.isDue(0)
			f.check(c.not, nil, c.context)
		}
		passed := time.Duration(0)
		for due := false; !due && passed < time.Hour; passed += verifiedFor {
			due = f.isDue(verifiedFor)
		}
		if passed != c.want {
			t.Errorf("%s: read again after %s, want %s", c.name, passed, c.want)
		}
	}
}

// What may not be stopped is only reported, and the condition says what happens.
func TestIsReported(t *testing.T) {
	t.Parallel()
	self := contextOf(os.Getpid())
	start, err := procfs.Start(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	self.process.Start = start
	exempt := self
	exempt.exempt = "it belongs to root or to the system"
	for _, c := range []struct {
		bypass  string
		context leasedContext
		stops   bool
		text    string
	}{
		{api.BypassReport, self, false, "it is only reported (mps.bypass: report)"},
		{api.BypassStop, self, true, "it is stopped (mps.bypass: stop)"},
		{api.BypassStop, exempt, false, "it is not stopped: it belongs to root or to the system"},
		{api.BypassDeny, self, false, "new ones get no context (mps.bypass: deny)"},
	} {
		f := newFixture(c.bypass)
		f.lists(gpu.ComputeProcess, self.process.PID)
		var stops map[string][]leasedContext
		for range readingsUntilFound {
			f.isDue(time.Hour)
			_, stops = f.check([]int{self.process.PID}, nil, c.context)
		}
		if (len(stops) > 0) != c.stops {
			t.Errorf("%s: stopped %v", c.text, stops)
		}
		conditions := f.conditions(f.want)
		if len(conditions) != 1 {
			t.Fatalf("%s: the conditions are %v", c.text, conditions)
		}
		for _, got := range conditions {
			for _, part := range []string{"(python) of lease a-1 of vision uses GPU 1 and is no client of its MPS", c.text} {
				if !strings.Contains(got.Message, part) || got.Tenant != "vision" || got.GPU == "" {
					t.Errorf("the condition is %+v, want %q", got, part)
				}
			}
		}
	}
}
