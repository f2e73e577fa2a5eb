package lease

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// firstFit is a CapacityFinder for tests: the first placement that is not taken, if possible without replacing idle
// instances.
type firstFit struct{}

func (firstFit) Find(profiles []string, on []GPUCapacity) (int, InstanceSlot) {
	clear := func(list []InstanceSlot, at gpu.Placement) bool {
		return !slices.ContainsFunc(list, func(r InstanceSlot) bool { return r.Placement.Overlaps(at) })
	}
	for _, name := range profiles {
		for _, keepIdle := range []bool{true, false} {
			for i, g := range on {
				for _, q := range g.Profiles.GI {
					for _, at := range q.Placements {
						if q.Name == name && clear(g.Taken, at) && (!keepIdle || clear(g.Idle, at)) {
							return i, InstanceSlot{ProfileID: q.ID, Name: q.Name, Placement: at}
						}
					}
				}
			}
		}
	}
	return -1, InstanceSlot{}
}

// testProfiles is four memory slices wide.
func testProfiles() *gpu.Profiles {
	places := func(size uint32, starts ...uint32) (out []gpu.Placement) {
		for _, s := range starts {
			out = append(out, gpu.Placement{Start: s, Size: size})
		}
		return out
	}
	return &gpu.Profiles{Width: 4, GI: []gpu.Profile{
		{ID: 14, Name: "1g.6gb", Slices: 1, Memory: 6 * gib, Max: 4, Placements: places(1, 0, 1, 2, 3)},
		{ID: 5, Name: "2g.12gb", Slices: 2, Memory: 12 * gib, Max: 2, Placements: places(2, 0, 2)},
		{ID: 0, Name: "4g.24gb", Slices: 4, Memory: 24 * gib, Max: 1, Placements: places(4, 0)},
	}}
}

// dynamicDevice is a GPU that creates instances on demand and has none.
func dynamicDevice(index int) GPUView {
	d := device(index, api.ModeMIG)
	d.DynamicProfiles = testProfiles()
	for _, q := range d.DynamicProfiles.GI {
		d.Profiles = append(d.Profiles, ProfileView{Name: q.Name, Slices: q.Slices, Memory: q.Memory})
	}
	return d
}

// dynamicFixture is a table whose pending instances the test creates.
type dynamicFixture struct {
	*Table
	t          *testing.T
	view       View
	now        time.Time
	generation uint64
	pending    int
}

func newDynamicFixture(t *testing.T, gpus int, grants ...Grant) *dynamicFixture {
	t.Helper()
	w := &dynamicFixture{t: t, now: epoch, view: View{Generation: 1, Grants: grants}}
	for i := range gpus {
		w.view.GPUs = append(w.view.GPUs, dynamicDevice(i))
	}
	w.Table = New(Config{
		Isolation:       &fakeIsolation{},
		Capacity:        firstFit{},
		Now:             func() time.Time { return w.now },
		InstancePending: func() { w.pending++ },
	})
	w.update()
	return w
}

func (w *dynamicFixture) update() {
	w.view.GPUs = slices.Clone(w.view.GPUs)
	for i := range w.view.GPUs {
		w.view.GPUs[i].Instances = slices.Clone(w.view.GPUs[i].Instances)
	}
	w.Update(w.view)
}

// setClosed closes GPUs, as a change that creates instances does.
func (w *dynamicFixture) setClosed(list []PendingInstance, closed string) {
	w.view.GPUs = slices.Clone(w.view.GPUs)
	for _, m := range list {
		d := &w.view.GPUs[w.view.index(m.GPU)]
		d.Closed, d.ReopensSoon = closed, closed != ""
	}
	w.update()
}

// finish creates the instances, except on the failed GPUs.
func (w *dynamicFixture) finish(list []PendingInstance, failed ...gpu.UUID) {
	bad := map[gpu.UUID]bool{}
	for _, id := range failed {
		bad[id] = true
	}
	w.setClosed(list, "")
	for _, m := range list {
		if bad[m.GPU] {
			continue
		}
		d := &w.view.GPUs[w.view.index(m.GPU)]
		d.Instances = slices.DeleteFunc(slices.Clone(d.Instances), func(in InstanceView) bool { return in.Placement.Overlaps(m.Placement) })
		w.generation++
		in := instance(d.Index, m.Name, m.Placement.Size, m.Placement.Start, m.Placement.Size, uint64(m.Placement.Size)*6*gib)
		in.ProfileID, in.Generation = m.ProfileID, w.generation
		d.Instances = append(d.Instances, in)
	}
	w.update()
	w.FinishPendingInstances(list, bad)
}

// createPending creates all pending instances and lists them.
func (w *dynamicFixture) createPending() string {
	list := w.TakePendingInstances()
	w.setClosed(list, "it is being changed")
	w.finish(list)
	return listPending(list)
}

func listPending(list []PendingInstance) string {
	var out []string
	for _, m := range list {
		out = append(out, fmt.Sprintf("%s on %s at %d", m.Name, m.GPU, m.Placement.Start))
	}
	return strings.Join(out, ", ")
}

func (w *dynamicFixture) where(k *Ticket) string {
	w.t.Helper()
	if l, ok := w.Get(k.ID()); ok {
		return fmt.Sprintf("%s on %s at %d, number %d", l.Place.Profile, l.Place.GPUs[0], l.Place.Instance.Start, l.Place.Generation)
	}
	for _, l := range w.List() {
		if l.ID == k.ID() {
			return "waits: " + l.Waiting
		}
	}
	return "ended"
}

func (w *dynamicFixture) expect(k *Ticket, want string) {
	w.t.Helper()
	if got := w.where(k); !strings.HasPrefix(got, want) {
		w.t.Errorf("the request is %q, want %q", got, want)
	}
}

func (w *dynamicFixture) end(k *Ticket) {
	w.t.Helper()
	if err := w.Ended(w.t.Context(), k.ID(), "it exited"); err != nil {
		w.t.Fatal(err)
	}
}

func many(g Grant, n int) Grant { g.Spec.MaxLeases = &n; return g }

func TestInstanceIsCreatedOnDemand(t *testing.T) {
	w := newDynamicFixture(t, 1, many(mig("a", "half", "2g.12gb"), 4))
	k, err := submit(w.Table, "a", "half") // without waiting: it fits when an instance is created
	if err != nil {
		t.Fatal(err)
	}
	w.expect(k, "waits: 2g.12gb is being created for it on GPU 0")
	if w.pending == 0 {
		t.Error("InstancePending was not called")
	}
	if got := w.createPending(); got != "2g.12gb on GPU-0 at 0" {
		t.Errorf("created %s", got)
	}
	w.expect(k, "2g.12gb on GPU-0 at 0, number 1")

	// An idle instance is used before another is created.
	w.end(k)
	again := queue(t, w.Table, "a", "half")
	w.expect(again, "2g.12gb on GPU-0 at 0, number 1")
	if list := w.TakePendingInstances(); len(list) != 0 {
		t.Errorf("created %s without a request", listPending(list))
	}
}

func TestPendingInstanceBelongsToItsRequest(t *testing.T) {
	high := with(mig("b", "half", "2g.12gb"), func(g *Grant) { g.Priority = "high" })
	w := newDynamicFixture(t, 1, many(mig("a", "half", "2g.12gb"), 4), many(high, 4))
	low := queue(t, w.Table, "a", "half")
	list := w.TakePendingInstances()
	w.setClosed(list, "it is being changed")
	first, second := queue(t, w.Table, "b", "half"), queue(t, w.Table, "b", "half")
	w.finish(list)
	w.expect(low, "2g.12gb on GPU-0 at 0")
	w.expect(first, "waits: 2g.12gb is being created for it")
	w.expect(second, "waits: no capacity for another 2g.12gb")
	if got := w.createPending(); got != "2g.12gb on GPU-0 at 2" {
		t.Errorf("then created %s", got)
	}
	w.expect(first, "2g.12gb on GPU-0 at 2")
}

func TestUnstartedInstanceGoesToHigherPriority(t *testing.T) {
	high := with(mig("b", "whole", "4g.24gb"), func(g *Grant) { g.Priority = "high" })
	w := newDynamicFixture(t, 1, mig("a", "half", "2g.12gb"), high)
	low, first := queue(t, w.Table, "a", "half"), queue(t, w.Table, "b", "whole")
	if got := w.createPending(); got != "4g.24gb on GPU-0 at 0" {
		t.Errorf("created %s", got)
	}
	w.expect(first, "4g.24gb on GPU-0 at 0")
	w.expect(low, "waits: no capacity for another 2g.12gb")
}

func TestSmallRequestsDoNotStarveLarge(t *testing.T) {
	w := newDynamicFixture(t, 1, many(mig("a", "small", "1g.6gb"), 8), mig("b", "whole", "4g.24gb"))
	one, two := queue(t, w.Table, "a", "small"), queue(t, w.Table, "a", "small")
	w.createPending()
	large := queue(t, w.Table, "b", "whole")
	w.expect(large, "waits: no capacity")
	if _, err := submit(w.Table, "a", "small"); err == nil {
		t.Error("a small request was placed before the large one that claims its capacity")
	}
	three := queue(t, w.Table, "a", "small")
	w.end(one)
	w.expect(three, "waits: no capacity") // The idle instance is in the slot that the large request claims.
	w.end(two)
	if got := w.createPending(); got != "4g.24gb on GPU-0 at 0" {
		t.Errorf("created %s", got)
	}
	w.expect(large, "4g.24gb on GPU-0 at 0")
	w.end(large)
	w.createPending()
	w.expect(three, "1g.6gb on GPU-0 at 0")
}

func TestPendingInstanceFails(t *testing.T) {
	w := newDynamicFixture(t, 2, many(mig("a", "half", "2g.12gb"), 4))
	waits, err := submit(w.Table, "a", "half")
	if err != nil {
		t.Fatal(err)
	}
	list := w.TakePendingInstances()
	w.setClosed(list, "it is being changed")
	w.finish(list, "GPU-0")
	w.expect(waits, "waits: 2g.12gb is being created for it on GPU 1")
	list = w.TakePendingInstances()
	w.setClosed(list, "it is being changed")
	w.finish(list, "GPU-1")
	w.expect(waits, "ended") // The request does not wait.
	if _, err := waits.Await(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "no capacity for another 2g.12gb") {
		t.Errorf("the request failed with %v", err)
	}

	waiting := queue(t, w.Table, "a", "half")
	for range 2 {
		list := w.TakePendingInstances()
		w.finish(list, "GPU-0", "GPU-1")
	}
	for range 5 {
		w.update()
		if list := w.TakePendingInstances(); len(list) != 0 {
			t.Fatalf("%s is tried again at once", listPending(list))
		}
	}
	w.now = w.now.Add(avoidFor)
	w.update()
	if got := w.createPending(); got != "2g.12gb on GPU-0 at 0" {
		t.Errorf("later created %s", got)
	}
	w.expect(waiting, "2g.12gb on GPU-0 at 0")
}

func TestManyPendingInstances(t *testing.T) {
	w := newDynamicFixture(t, 2, many(mig("a", "small", "1g.6gb"), 9), many(mig("b", "half", "2g.12gb"), 9))
	for range 3 {
		queue(t, w.Table, "a", "small")
		queue(t, w.Table, "b", "half")
	}
	list := w.TakePendingInstances()
	for i := range list {
		for _, m := range list[:i] {
			if m.GPU == list[i].GPU && m.Placement.Overlaps(list[i].Placement) {
				t.Errorf("one slot for two: %s", listPending([]PendingInstance{m, list[i]}))
			}
		}
	}
	if len(list) != 5 { // Three small and two half instances use both GPUs.
		t.Errorf("%d are pending: %s", len(list), listPending(list))
	}
	w.finish(list)
	if n := len(w.Live()); n != len(list) {
		t.Errorf("%d have a place, of %d with an instance", n, len(list))
	}
}

// An idle instance is replaced for a request, and no other request gets it before.
func TestIdleInstanceIsReplaced(t *testing.T) {
	w := newDynamicFixture(t, 1, many(mig("a", "small", "1g.6gb"), 9), mig("b", "whole", "4g.24gb"))
	k := queue(t, w.Table, "a", "small")
	w.createPending()
	w.end(k)
	large := queue(t, w.Table, "b", "whole")
	list := w.TakePendingInstances()
	small := queue(t, w.Table, "a", "small")
	w.expect(small, "waits: ")
	if n := len(w.UnusedInstances()["GPU-0"]); n != 0 {
		t.Errorf("%d instances are unused although a request needs their slot", n)
	}
	w.finish(list)
	w.expect(large, "4g.24gb on GPU-0 at 0")
	w.expect(small, "waits: no capacity")
}

func TestNoPendingInstance(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(d *GPUView)
		says   string
	}{
		{"the layout is fixed", func(d *GPUView) { d.DynamicProfiles = nil }, "there is no 2g.12gb instance now"},
		{"it is held", func(d *GPUView) { d.Closed = "it is held" }, "GPU 0 is closed: it is held"},
		{"a foreign instance is in the way", func(d *GPUView) {
			in := instance(0, "4g.24gb", 4, 0, 4, 24*gib)
			in.Pinned, in.Unusable = true, "it is not managed by gpushare"
			d.Instances = []InstanceView{in}
		}, "4g.24gb at 0 on GPU 0 is in the way: it is not managed by gpushare"},
		{"a process of no lease uses all of it", func(d *GPUView) {
			in := instance(0, "4g.24gb", 4, 0, 4, 24*gib)
			in.Pinned, in.InUse = true, true
			d.Instances = []InstanceView{in}
		}, "no capacity for another 2g.12gb instance"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newDynamicFixture(t, 1, mig("a", "half", "2g.12gb"))
			c.change(&w.view.GPUs[0])
			w.update()
			_, err := submit(w.Table, "a", "half")
			var e *api.Error
			if !errors.As(err, &e) || e.Kind != api.KindUnavailable || !strings.Contains(e.Message, c.says) {
				t.Errorf("refused with %v, want %q in it", err, c.says)
			}
			if list := w.TakePendingInstances(); len(list) != 0 {
				t.Errorf("%s is pending", listPending(list))
			}
		})
	}
}

// The capacity of a reserved grant is kept free, and no instance is created before the first request.
func TestReservedCapacity(t *testing.T) {
	w := newDynamicFixture(
		t, 1, many(mig("a", "small", "1g.6gb"), 9), with(mig("b", "half", "2g.12gb"), func(g *Grant) { g.Spec.Reserved = true }),
	)
	if list := w.TakePendingInstances(); len(list) != 0 {
		t.Errorf("%s is pending without a request", listPending(list))
	}
	for range 2 {
		queue(t, w.Table, "a", "small")
	}
	if _, err := submit(w.Table, "a", "small"); err == nil {
		t.Error("the reserved capacity was used")
	}
	w.createPending()
	k := queue(t, w.Table, "b", "half")
	w.createPending()
	w.expect(k, "2g.12gb on GPU-0 at 0")
	w.end(k)
	if n := len(w.UnusedInstances()["GPU-0"]); n != 0 {
		t.Errorf("%d instances are unused, and one is reserved", n)
	}
	if u := w.Unmet(); len(u) != 0 {
		t.Errorf("%v", u)
	}
}

func TestUnusedInstances(t *testing.T) {
	w := newDynamicFixture(t, 1, many(mig("a", "small", "1g.6gb"), 9))
	k, other := queue(t, w.Table, "a", "small"), queue(t, w.Table, "a", "small")
	w.createPending()
	if got := w.UnusedInstances(); len(got) != 0 {
		t.Errorf("%v are in use", got)
	}
	w.end(k)
	if got := w.UnusedInstances()["GPU-0"]; len(got) != 1 || got[0].Start != 0 {
		t.Errorf("unused: %v", got)
	}
	other.Cancel()
	if got := w.UnusedInstances()["GPU-0"]; len(got) != 2 {
		t.Errorf("unused: %v", got)
	}
}

// A request is not refused because a GPU is closed while an instance is created on it.
func TestNoRefusalDuringInstanceChange(t *testing.T) {
	w := newDynamicFixture(t, 1, many(mig("a", "small", "1g.6gb"), 9))
	first := queue(t, w.Table, "a", "small")
	list := w.TakePendingInstances()
	w.setClosed(list, "it is being changed")
	k, err := submit(w.Table, "a", "small")
	if err != nil {
		t.Fatal(err)
	}
	w.finish(list)
	w.expect(first, "1g.6gb on GPU-0 at 0")
	w.expect(k, "waits: 1g.6gb is being created for it")
	w.createPending()
	w.expect(k, "1g.6gb on GPU-0 at 1")
}
