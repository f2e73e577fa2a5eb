package fault

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

const gpuA = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")

// fixture is a node with one GPU in MPS mode, in a time that the test sets.
type fixture struct {
	*Faults
	now     time.Time
	node    observe.Node
	leaseOf map[int]string
	tenants map[string]string
	notes   map[string][]string
	stopped []int
	events  <-chan *api.Event
	seen    []*api.Event
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	stored := storetest.Open(t)
	f := &fixture{
		now:     time.Unix(1e9, 0),
		node:    observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: gpuA, Index: 3}}}}},
		leaseOf: map[int]string{},
		tenants: map[string]string{"red-1": "red", "blue-1": "blue"},
		notes:   map[string][]string{},
	}
	f.Faults = &Faults{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), func() time.Time { return f.now }),
		State:    state.NewState(stored, false),
		Observed: func() *observe.Node { return &f.node },
		Leases:   f,
		Stopper:  f,
		Wake:     func() {},
		LeaseOf:  func(pid int) (string, bool) { id, ok := f.leaseOf[pid]; return id, ok },
		Lease: func(id string) (lease.Lease, bool) {
			return lease.Lease{ID: id, Terms: lease.Grant{Tenant: f.tenants[id]}}, f.tenants[id] != ""
		},
	}
	events, stop := f.Events.Subscribe()
	t.Cleanup(stop)
	f.events = events.C
	return f
}

func (f *fixture) Note(id string, n lease.Notice) { f.notes[id] = append(f.notes[id], n.Text) }

func (f *fixture) Members(ctx context.Context, _ *lease.Lease, processes []cgroup.Process, notify func(context.Context)) error {
	notify(ctx)
	for _, p := range processes {
		f.stopped = append(f.stopped, p.PID)
	}
	return nil
}

// observed passes an observation.
func (f *fixture) observed(st mps.State) {
	st.GPU = gpuA
	f.node.GPUs[0].MPS = &st
	f.Converge(&f.node)
}

// messages are those of the events of a kind.
func (f *fixture) messages(kind string) (out []string) {
	for {
		select {
		case e := <-f.events:
			f.seen = append(f.seen, e)
			continue
		default:
		}
		break
	}
	for _, e := range f.seen {
		if e.Kind == kind {
			out = append(out, e.Message)
		}
	}
	return out
}

// A fault is reported once, with the leases of processes that have ended when it is read, and each of these leases keeps it.
func TestAFaultIsReportedOnce(t *testing.T) {
	f := newFixture(t)
	f.leaseOf = map[int]string{7: "red-1", 8: "blue-1"}
	f.observed(mps.State{Clients: []int{7, 8}})
	f.leaseOf = nil
	fault := &mps.Fault{Since: f.now, Culprit: 7, Victims: []int{8, 9}, XID: 31}
	f.observed(mps.State{Fault: fault})
	f.observed(mps.State{Fault: fault})
	const want = "GPU 3: pid 7 (lease red-1) had a fatal fault under MPS (XID 31); these lost their context: pid 8 (lease blue-1), pid 9"
	if got := f.messages("mps.fault"); !slices.Equal(got, []string{want}) {
		t.Errorf("events %q, want %q", got, want)
	}
	for id, want := range map[string]string{
		"red-1":  "pid 7 had a fatal fault under MPS of GPU 3 (XID 31)",
		"blue-1": "pid 8 lost its GPU context: a client of the MPS of GPU 3 had a fatal fault (XID 31)",
	} {
		if !slices.Equal(f.notes[id], []string{want}) {
			t.Errorf("%s keeps %q, want %q", id, f.notes[id], want)
		}
	}
	f.observed(mps.State{Fault: &mps.Fault{Since: f.now.Add(time.Second)}})
	if got := f.messages("mps.fault"); len(got) != 2 || !strings.Contains(got[1], "does not name it") {
		t.Errorf("the next fault: %q", got)
	}
}

// A process that a fault leaves is stopped once, ten seconds after it. One of no lease is not.
func TestStragglersAreStoppedAfterTheGrace(t *testing.T) {
	f := newFixture(t)
	own := os.Getpid() // A process that runs.
	f.leaseOf = map[int]string{own: "red-1"}
	f.observed(mps.State{Clients: []int{own, 1}})
	f.observed(mps.State{Fault: &mps.Fault{Since: f.now, Victims: []int{1, own}, Stragglers: []int{1, own}}})
	stop := func() []int {
		var tasks loop.Group
		f.stopStragglers(t.Context(), &tasks)
		tasks.Wait()
		return f.stopped
	}
	f.now = f.now.Add(grace - time.Millisecond)
	if got := stop(); len(got) != 0 {
		t.Errorf("within the grace %v are stopped", got)
	}
	f.now = f.now.Add(time.Millisecond)
	stop()
	if got := stop(); !slices.Equal(got, []int{own}) {
		t.Errorf("stopped: %v, want %d once", got, own)
	}
	if got := f.messages("mps.fault.stopped"); len(got) != 1 || len(f.notes["red-1"]) != 2 {
		t.Errorf("events %q, notes %q", got, f.notes)
	}
}

// An XID that the driver reports after the fault was read reaches the leases too, and the fault counts once.
func TestALateXIDIsReported(t *testing.T) {
	f := newFixture(t)
	f.leaseOf = map[int]string{7: "red-1"}
	for range maxFaults - 1 {
		f.now, f.notes = f.now.Add(time.Second), map[string][]string{}
		f.observed(mps.State{Clients: []int{7}})
		for _, xid := range []uint64{0, 0, 43, 43} {
			f.observed(mps.State{Fault: &mps.Fault{Since: f.now, Culprit: 7, XID: xid}})
		}
		const text = "pid 7 had a fatal fault under MPS of GPU 3"
		if got := f.notes["red-1"]; !slices.Equal(got, []string{text, text + " (XID 43)"}) {
			t.Errorf("the lease keeps %q", got)
		}
	}
	if held := closing.HeldBack.In(f.State.Stored()); len(held) > 0 {
		t.Errorf("held back after %d faults: %+v", maxFaults-1, held)
	}
}

// The third fault within ten minutes closes the GPU to the tenant whose processes caused them, and to no other one, until an
// administrator resumes it.
func TestARepeatOffenderIsHeldBack(t *testing.T) {
	f := newFixture(t)
	f.leaseOf = map[int]string{7: "red-1", 8: "blue-1"}
	faults := func(culprit int, after time.Duration) {
		f.now = f.now.Add(after)
		f.observed(mps.State{Clients: []int{7, 8}})
		f.observed(mps.State{Fault: &mps.Fault{Since: f.now, Culprit: culprit}})
	}
	held := func() (tenants []string) {
		for _, h := range closing.HeldBack.In(f.State.Stored()) {
			tenants = append(tenants, h.Tenant)
		}
		return tenants
	}
	faults(7, 0)
	faults(8, time.Minute)
	faults(7, time.Minute)
	faults(7, countedFor-time.Minute) // The first one counts no more.
	faults(0, time.Second)            // Of a culprit that is not known no tenant is to blame.
	if got := held(); len(got) != 0 {
		t.Fatalf("held back: %q", got)
	}
	faults(7, time.Second)
	if got := held(); !slices.Equal(got, []string{"red"}) {
		t.Fatalf("held back: %q", got)
	}
	if got := f.messages("mps.held-back"); len(got) != 1 {
		t.Errorf("events %q", got)
	}
	conditions := f.Conditions.List()
	if len(conditions) != 1 || conditions[0].Kind != "mps-held-back" || conditions[0].Tenant != "red" ||
		!strings.Contains(conditions[0].Hint, "gpushare mps resume 3") {
		t.Errorf("conditions %+v", conditions)
	}
	f.State.SetDesired(&state.Desired{Spec: &api.Spec{}, GPUs: map[gpu.UUID]*api.GPUSpec{gpuA: {Mode: api.ModeMPS}}})
	v := planner.View(f.State, &observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: gpuA}}}}}, f.now)
	if why := v.GPUs[0].HeldBack; why["red"] == "" || len(why) != 1 {
		t.Errorf("the view has %q", why)
	}
	faults(7, time.Second)
	if got := held(); len(got) != 1 {
		t.Errorf("held back twice: %q", got)
	}
}
