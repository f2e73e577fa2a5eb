package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/kernel/kernellog"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/lease"
)

const gpuA = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")

// fixture is a node with one GPU, in a time that the test sets.
type fixture struct {
	*testing.T
	*Health
	now     time.Time
	node    observe.Node
	live    []lease.Lease
	leaseOf map[int]string
	notes   map[string][]string
	reading gpu.Health
	readErr error
	reads   int
	sensors func(context.Context) (gpu.Sensors, error) // nil: nothing reads them
	events  <-chan *api.Event
	records map[string]*lease.Lease
	found   []gpu.UUID // that answer again
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	stored := storetest.Open(t)
	f := &fixture{
		T: t, now: time.Unix(1e9, 0), leaseOf: map[int]string{}, notes: map[string][]string{}, records: map[string]*lease.Lease{},
		node: observe.Node{Epoch: observe.Epoch{Boot: "boot-1", Driver: "load-1"}, GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{
			Identity: gpu.Identity{UUID: gpuA, Index: 3, PCI: "0000:07:00.0"}, Memory: gpu.Memory{Total: 40 << 30},
		}}}},
	}
	f.Health = &Health{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), func() time.Time { return f.now }),
		State:    state.NewState(stored, false),
		Observed: func() *observe.Node { return &f.node },
		Leases:   f,
		Admit:    func() {},
		Wake:     func() {},
		StateDir: store.RunDir(stored.Path()),
		Due:      loop.NewWake(),
		Arrived:  loop.NewWake(),
		LeaseLookup: func(int) func(int) (string, bool) {
			return func(pid int) (string, bool) { id, ok := f.leaseOf[pid]; return id, ok }
		},
		Live: func() []lease.Lease { return f.live },
		Lease: func(id string) (lease.Lease, bool) {
			i := slices.IndexFunc(f.live, func(l lease.Lease) bool { return l.ID == id })
			if i < 0 {
				return lease.Lease{}, false
			}
			return f.live[i], true
		},
	}
	f.Driver = driver{f}
	events, stop := f.Events.Subscribe()
	t.Cleanup(stop)
	f.events = events.C
	return f
}

// answer is a reading.
func (f *fixture) answer() (gpu.Health, error) { f.reads++; return f.reading, f.readErr }

func (f *fixture) RecordXID(id string, x api.LeaseXID)  { f.recorded(id).RecordXID(x) }
func (f *fixture) RetractXID(id string, x api.LeaseXID) { f.recorded(id).RetractXID(x) }

func (f *fixture) RecordLost(id string, g api.LostGPU) bool { return f.recorded(id).RecordLost(g) }

func (f *fixture) RecordFound(id gpu.UUID, at time.Time) { f.found = append(f.found, id) }

// recorded is what was recorded of a lease.
func (f *fixture) recorded(id string) *lease.Lease {
	if f.records[id] == nil {
		f.records[id] = &lease.Lease{ID: id}
	}
	return f.records[id]
}

func (f *fixture) Note(id string, n lease.Notice) { f.notes[id] = append(f.notes[id], n.Text) }

// driver answers with the reading of a fixture.
type driver struct{ f *fixture }

func (d driver) Health(context.Context, gpu.UUID) (gpu.Health, error) { return d.f.answer() }

func (d driver) Sensors(ctx context.Context, _ gpu.UUID) (gpu.Sensors, error) {
	return d.f.sensors(ctx)
}

// published returns the events of a kind since the last call.
func (f *fixture) published(kind string) (out []*api.Event) {
	for {
		select {
		case e := <-f.events:
			if e.Kind == kind {
				out = append(out, e)
			}
		default:
			return out
		}
	}
}

// wait lets an event whose line of the log does not come be published.
func (f *fixture) wait(d time.Duration) {
	f.now = f.now.Add(d)
	f.mu.Lock()
	due := f.pairs.Due(f.now)
	f.mu.Unlock()
	f.publish(due)
}

func (f *fixture) line1(xid uint64, pid int) {
	f.line(kernellog.Record{PCI: "0000:07:00", XID: xid, PID: pid, Name: "python"})
}

func (f *fixture) leases(tenantOf map[string]string) {
	for id, tenant := range tenantOf {
		f.live = append(f.live, lease.Lease{ID: id, Terms: lease.Grant{Tenant: tenant}})
	}
}

// An error of a program is reported to its lease, once for both reports, and the GPU stays open.
func TestAnErrorOfAProgramIsReportedToItsLease(t *testing.T) {
	for name, reports := range map[string]func(*fixture){
		"event, then line": func(f *fixture) { f.XID(gpu.Event{GPU: gpuA, XID: 31}); f.line1(31, 7) },
		"line, then event": func(f *fixture) { f.line1(31, 7); f.XID(gpu.Event{GPU: gpuA, XID: 31}) },
		"the process has ended": func(f *fixture) {
			f.node.GPUs[0].Processes = []gpu.Process{{PID: 7}}
			f.Converge(&f.node)
			delete(f.leaseOf, 7)
			f.node.GPUs[0].Processes = nil
			f.now = f.now.Add(time.Minute)
			f.Converge(&f.node)
			f.XID(gpu.Event{GPU: gpuA, XID: 31})
			f.line1(31, 7)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.leases(map[string]string{"red-1": "red", "blue-1": "blue"})
			f.leaseOf[7] = "red-1"
			reports(f)
			f.wait(time.Hour)
			if n := f.notes["red-1"]; len(f.notes) != 1 || len(n) != 1 || !strings.Contains(n[0], "pid 7 (python) caused XID 31 (") ||
				!strings.Contains(n[0], "on GPU 3; the GPU is in order") {
				t.Errorf("the notices are %q", f.notes)
			}
			e := f.published("gpu.xid")
			if len(e) != 1 || e[0].Tenant != "red" || e[0].Lease != "red-1" || e[0].GPU != string(gpuA) ||
				!strings.Contains(e[0].Message, "pid 7 (python)") {
				t.Errorf("the events are %+v", e)
			}
			if x := f.XIDs.List(); len(x) != 1 || x[0].Count != 1 {
				t.Errorf("the XIDs are %+v", x)
			}
			if r := f.record(gpuA); !r.Open() {
				t.Errorf("the GPU is %+v", r)
			}
		})
	}
}

// Of an error in a MIG instance its lease is known without the log, unless several leases share the instance.
func TestAnErrorInAnInstanceConcernsItsLease(t *testing.T) {
	for name, c := range map[string]struct {
		leases []string
		xid    uint64
		note   string
	}{
		"an error of a program":    {[]string{"red-1"}, 13, "a program caused XID 13 ("},
		"a contained memory error": {[]string{"red-1"}, 94, "a program was ended by XID 94 ("},
		"a shared instance":        {[]string{"red-1", "blue-1"}, 13, ""},
		"without a lease":          {nil, 13, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			gi := uint32(2)
			f.node.GPUs[0].Instances = []gpu.Instance{
				{ID: 1, Compute: []gpu.ComputeInstance{{UUID: "MIG-1"}}},
				{ID: gi, Compute: []gpu.ComputeInstance{{UUID: "MIG-2"}}},
			}
			f.live = []lease.Lease{{ID: "other-1", Place: lease.Place{Devices: []gpu.UUID{"MIG-1"}}}}
			for _, id := range c.leases {
				f.live = append(f.live, lease.Lease{ID: id, Place: lease.Place{Devices: []gpu.UUID{"MIG-2"}}})
			}
			f.XID(gpu.Event{GPU: gpuA, XID: c.xid, GI: &gi})
			if len(f.notes) != 0 {
				t.Errorf("it did not wait for the log: %q", f.notes)
			}
			f.wait(2 * time.Second)
			if got := strings.Join(f.notes["red-1"], ""); !strings.Contains(got, c.note) || (c.note == "") != (got == "") ||
				len(f.notes["other-1"]) != 0 {
				t.Errorf("the notices are %q", f.notes)
			}
			if r := f.record(gpuA); !r.Open() {
				t.Errorf("the GPU is %+v", r)
			}
		})
	}
}

// Of an error in a compute instance of an instance that is split, the lease of that compute instance is known.
func TestAnErrorInAComputeInstanceConcernsItsLease(t *testing.T) {
	gi := uint32(2)
	for ci, want := range map[uint32]string{0: "red-1", 1: "blue-1", 2: ""} {
		t.Run(fmt.Sprintf("compute instance %d", ci), func(t *testing.T) {
			f := newFixture(t)
			f.node.GPUs[0].Instances = []gpu.Instance{
				{ID: gi, Compute: []gpu.ComputeInstance{{ID: 0, UUID: "MIG-0"}, {ID: 1, UUID: "MIG-1"}, {ID: 2, UUID: "MIG-2"}}},
			}
			f.live = []lease.Lease{
				{ID: "red-1", Place: lease.Place{Devices: []gpu.UUID{"MIG-0"}}},
				{ID: "blue-1", Place: lease.Place{Devices: []gpu.UUID{"MIG-1"}}},
			}
			f.XID(gpu.Event{GPU: gpuA, XID: 13, GI: &gi, CI: &ci})
			f.wait(2 * time.Second)
			for _, id := range []string{"red-1", "blue-1"} {
				if got := len(f.notes[id]) > 0; got != (id == want) {
					t.Errorf("%s has the notices %q", id, f.notes[id])
				}
			}
		})
	}
}

// A program that fails again and again is noted once in a minute, and counted each time.
func TestARepeatedErrorIsNotedOnceInAMinute(t *testing.T) {
	f := newFixture(t)
	f.leases(map[string]string{"red-1": "red"})
	f.leaseOf[7] = "red-1"
	for range 100 {
		f.line1(31, 7)
		f.now = f.now.Add(time.Second)
	}
	if n := len(f.notes["red-1"]); n != 2 {
		t.Errorf("it was noted %d times", n)
	}
	if x := f.XIDs.List(); len(x) != 1 || x[0].Count != 100 {
		t.Errorf("the XIDs are %+v", x)
	}
}

// A closed GPU is opened by retry when its readings permit; what they say is in the answer, in the condition and in the status.
func TestRetryReadsTheGPU(t *testing.T) {
	f := newFixture(t)
	f.line1(95, 0)
	if e := f.published("gpu.health"); len(e) != 1 || !strings.Contains(e[0].Message, "GPU 3 takes no new lease: XID 95 (") {
		t.Fatalf("the events are %+v", e)
	}
	for _, c := range []struct {
		reading gpu.Health
		err     error
		kind    api.Kind
		says    string
	}{
		{gpu.Health{Recovery: gpu.RecoveryReset}, nil, api.KindConflict, "its test failed: the driver says that it needs a reset"},
		{gpu.Health{Rows: &gpu.RemappedRows{Pending: true}}, nil, api.KindConflict, "rows of its memory wait for a reset"},
		{gpu.Health{}, errors.New("the driver did not answer in time"), api.KindUnavailable, "the driver did not answer in time"},
	} {
		f.reading, f.readErr = c.reading, c.err
		err, _ := errors.AsType[*api.Error](f.Retry(t.Context(), gpuA))
		if err == nil || err.Kind != c.kind || !strings.Contains(err.Message, c.says) || f.record(gpuA).Open() {
			t.Errorf("retry with %+v: %v", c.reading, err)
		}
		f.Converge(&f.node)
		list := f.Conditions.List()
		if len(list) == 0 || list[0].Kind != "health" || !strings.Contains(list[0].Hint, "gpushare gpu retry 3") {
			t.Errorf("the conditions are %+v", list)
		}
	}
	temperature := 61
	f.reading, f.readErr = gpu.Health{Recovery: gpu.RecoveryNone, Temperature: &temperature}, nil
	if err := f.Retry(t.Context(), gpuA); err != nil || !f.record(gpuA).Open() {
		t.Errorf("retry with good readings: %v, %+v", err, f.record(gpuA))
	}
	if s := f.Status(gpuA); s.State != api.HealthOK || s.Readings == nil || *s.Readings.Temperature != 61 ||
		!s.Readings.ReadAt.Equal(f.now) {
		t.Errorf("the status is %+v", s)
	}
	if list := f.Conditions.List(); len(list) != 0 {
		t.Errorf("the conditions are %+v", list)
	}
	reads := f.reads
	if err := f.Retry(t.Context(), gpuA); err != nil || f.reads != reads {
		t.Errorf("retry of an open GPU: %v, and %d readings", err, f.reads-reads)
	}
}

// A condition says that a GPU is lost where this is why it is closed: not of one that is closed for another reason, or is tested. Then
// it is the only one, from the first moment on: whether the GPU stopped answering before the XID or after it.
func TestTheConditionSaysThatAGPUIsLost(t *testing.T) {
	for xid, want := range map[uint64]bool{79: true, 167: true, 95: false, 31: false} {
		f := newFixture(t)
		f.line1(xid, 0)
		if got := f.saysLost(gpuA); got != want {
			t.Errorf("after XID %d: %v", xid, got)
		}
		for when, about := range map[string]string{"before the XID": string(gpuA), "after it": string(gpuA), "of another GPU": "GPU-b"} {
			g := newFixture(t)
			raw := map[string]api.Condition{about: {GPU: about, Message: "lost"}}
			if when == "before the XID" {
				g.Conditions.Replace("gpu", raw)
				g.line1(xid, 0)
			} else {
				g.line1(xid, 0)
				g.Conditions.Replace("gpu", raw)
			}
			kinds := map[string]bool{}
			for _, c := range g.Conditions.List() {
				kinds[c.Kind] = true
			}
			if kinds["gpu"] == (want && about == string(gpuA)) || want && !kinds["health"] {
				t.Errorf("XID %d, and it does not answer %s: %+v", xid, when, g.Conditions.List())
			}
			g.node.Epoch.Boot = "boot-2"
			g.Converge(&g.node)
			if !slices.ContainsFunc(g.Conditions.List(), func(c api.Condition) bool { return c.Kind == "gpu" }) {
				t.Errorf("XID %d: after a boot that it does not answer is no condition", xid)
			}
		}
		f.node.Epoch.Boot = "boot-2"
		f.Converge(&f.node)
		if f.saysLost(gpuA) {
			t.Errorf("after XID %d and a boot it is reported as lost", xid)
		}
	}
}

// What was read before a reset does not open the GPU after it.
func TestAReadingFromBeforeDoesNotCount(t *testing.T) {
	f := newFixture(t)
	f.line1(95, 0)
	f.Driver = during{driver{f}, func() {
		f.node.Epoch.Boot = "boot-2"
		f.Converge(&f.node)
	}}
	if _, err := f.read(t.Context(), gpuA); err != nil {
		t.Fatal(err)
	}
	if r := f.record(gpuA); r.State != rules.Testing {
		t.Errorf("it is %+v", r)
	}
	f.Driver = driver{f}
	if _, err := f.read(t.Context(), gpuA); err != nil || !f.record(gpuA).Open() {
		t.Errorf("after another reading it is %+v: %v", f.record(gpuA), err)
	}
}

// during is a driver in whose reading something happens.
type during struct {
	driver
	happens func()
}

func (d during) Health(context.Context, gpu.UUID) (gpu.Health, error) {
	d.happens()
	return d.f.answer()
}

// A closed GPU was reset if the driver lost it before it answers again, not if a call failed for another reason.
func TestACallThatFailedIsNoReset(t *testing.T) {
	for err, tested := range map[error]bool{
		gpu.ErrLost: true, gpu.ErrNotFound: true, gpu.ErrResetRequired: true, gpu.ErrTimeout: false, gpu.ErrUnknown: false,
		context.Canceled: false,
	} {
		f := newFixture(t)
		f.line1(95, 0)
		f.node.GPUs[0].Err = &gpu.Error{Op: "read", Err: err}
		f.Converge(&f.node)
		f.node.GPUs[0].Err = nil
		f.Converge(&f.node)
		if r := f.record(gpuA); (r.State == rules.Testing) != tested {
			t.Errorf("after %v it is %+v", err, r)
		}
	}
}

// A change that could not be written is written with the next observation.
func TestATransitionIsNotLost(t *testing.T) {
	f := newFixture(t)
	if err := f.State.Store.Close(); err != nil {
		t.Fatal(err)
	}
	stored := storetest.Open(t)
	f.line1(95, 0)
	if f.record(gpuA).State == rules.Closed {
		t.Fatal("the store that was closed still writes")
	}
	f.State.Store = stored
	f.Converge(&f.node)
	if r := f.record(gpuA); r.State != rules.Closed || r.XID != 95 {
		t.Errorf("it is %+v", r)
	}
}

// The history outlives the daemon: what the last day is compared with was read before its restart.
func TestTheHistoryOutlivesTheDaemon(t *testing.T) {
	f := newFixture(t)
	was := f.reading
	read := func(hours int, corrected uint64) {
		t.Helper()
		for range hours {
			was.ECC = &gpu.ECCErrors{Corrected: corrected}
			if f.reading = was; corrected > 0 {
				corrected += 50
			}
			if _, err := f.read(t.Context(), gpuA); err != nil {
				t.Fatal(err)
			}
			f.now = f.now.Add(time.Hour)
		}
	}
	read(48, 0)
	next := newFixture(t)
	next.StateDir, next.now = f.StateDir, f.now
	next.loadHistory()
	f = next
	read(20, 50)
	list := f.Conditions.List()
	if len(list) != 1 || list[0].Kind != "health" ||
		!strings.Contains(list[0].Message, "GPU 3: errors of its memory that were corrected in the last day: 950") {
		t.Errorf("the conditions are %+v", list)
	}
	if s := f.Status(gpuA); s.State != api.HealthWarning || s.Since != nil {
		t.Errorf("the status is %+v", s)
	}
}

// A board that was taken out is forgotten after the boot; one that only is not found is not.
func TestABoardThatWasTakenOutIsForgotten(t *testing.T) {
	f := newFixture(t)
	f.line1(95, 0)
	other := f.node.GPUs[0]
	other.Identity.UUID = "GPU-other"
	f.node.GPUs = []observe.GPU{other}
	f.Converge(&f.node)
	if f.record(gpuA).Open() {
		t.Error("it was forgotten without a boot")
	}
	f.node.Epoch.Boot = "boot-2"
	f.Converge(&f.node)
	if r := f.record(gpuA); !r.Open() {
		t.Errorf("after the boot it is %+v", r)
	}
}

// The entry of a GPU has precedence over that of the node, key by key.
func TestPolicyOfAGPU(t *testing.T) {
	warm, hot := api.Celsius(80), api.Celsius(90)
	want := &state.Desired{
		Spec: &api.Spec{
			Node: api.NodeSpec{
				Health: &api.HealthSpec{
					Temperature: &api.TemperatureSpec{Warn: &warm, Do: api.TemperaturePauseLow},
					XID:         map[string]string{"79": "report", "63": "close"},
				},
			},
		},
		GPUs: map[gpu.UUID]*api.GPUSpec{
			gpuA: {Health: &api.HealthSpec{Temperature: &api.TemperatureSpec{Warn: &hot}, XID: map[string]string{"63": "report"}}},
		},
	}
	if p := policyOf(want, gpuA); *p.Warn != 90 || p.Do[79] != rules.ReportOnly || p.Do[63] != rules.ReportOnly {
		t.Errorf("it is %+v", p)
	}
	if !policyOf(want, gpuA).PauseLow {
		t.Error("what the node does at a high temperature does not hold for a GPU that has another one")
	}
	want.GPUs[gpuA].Health.Temperature.Do = api.TemperatureReport
	if policyOf(want, gpuA).PauseLow {
		t.Error("the entry of the GPU has no precedence")
	}
	if p := policyOf(want, "GPU-other"); *p.Warn != 80 || !p.PauseLow || p.Do[63] != rules.Close {
		t.Errorf("that of another GPU is %+v", p)
	}
	if p := policyOf(&state.Desired{}, gpuA); p.Warn != nil || len(p.Do) != 0 {
		t.Errorf("without a spec it is %+v", p)
	}
}

// A GPU is hot as its last reading says, and those who pause leases are informed of each reading while it is, and of the one that
// ends it.
func TestTheHeatOfAGPU(t *testing.T) {
	f := newFixture(t)
	limit := api.Celsius(85)
	f.State.SetDesired(&state.Desired{
		GPUs: map[gpu.UUID]*api.GPUSpec{
			gpuA: {Health: &api.HealthSpec{Temperature: &api.TemperatureSpec{Warn: &limit, Do: api.TemperaturePauseLow}}},
		},
	})
	informed := 0
	f.Heated = func() { informed++ }
	for i, c := range []struct {
		degrees       int
		err           error
		hot, informed bool
	}{
		{84, nil, false, false},
		{85, nil, true, true},
		{81, nil, true, true},
		{80, nil, false, true},
		{81, nil, false, false},
		{90, nil, true, true},
		{90, errors.New("the driver did not answer in time"), false, true},
		{84, nil, false, false},
	} {
		f.now = f.now.Add(interval)
		f.reading, f.readErr = gpu.Health{Temperature: &c.degrees}, c.err
		before := informed
		if _, err := f.read(t.Context(), gpuA); !errors.Is(err, c.err) {
			t.Fatal(err)
		}
		if heat, pauses := f.Heat(gpuA); heat.Hot != c.hot || !pauses || (informed > before) != c.informed {
			t.Errorf("reading %d, %d °C: %+v, informed: %t", i, c.degrees, heat, informed > before)
		}
	}
	hot := 90
	f.reading, f.readErr = gpu.Health{Temperature: &hot}, nil
	if _, err := f.read(t.Context(), gpuA); err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(rules.HeatLasts)
	if heat, _ := f.Heat(gpuA); heat.Hot {
		t.Error("an old reading says that it is hot")
	}
	if heat, pauses := f.Heat("GPU-other"); heat.Hot || pauses {
		t.Error("another GPU is hot")
	}
}

// The kernel's log that cannot be read is no reason to wait for it.
func TestWithoutTheLogNothingWaits(t *testing.T) { synctest.Test(t, withoutTheLog) }

func withoutTheLog(t *testing.T) {
	f := newFixture(t)
	f.FollowLog = func(context.Context, func(kernellog.Record)) error { return os.ErrPermission }
	if f.LogError() != nil {
		t.Error("it failed before it was read")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.logLoop(ctx) }()
	synctest.Wait()
	cancel()
	<-ended
	if !errors.Is(f.LogError(), os.ErrPermission) {
		t.Errorf("it failed with %v", f.LogError())
	}
	f.XID(gpu.Event{GPU: gpuA, XID: 31})
	if e := f.published("gpu.xid"); len(e) != 1 {
		t.Errorf("the events are %+v", e)
	}
}
