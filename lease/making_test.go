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

// firstFit is Rooms for tests: the first placement that is not taken, and where possible one on which nothing idle lies.
type firstFit struct{}

func (firstFit) Find(profiles []string, on []Ground) (int, Room) {
	clear := func(list []Room, at gpu.Placement) bool {
		return !slices.ContainsFunc(list, func(r Room) bool { return r.Placement.Overlaps(at) })
	}
	for _, name := range profiles {
		for _, sparing := range []bool{true, false} {
			for i, g := range on {
				for _, q := range g.Grid.GI {
					for _, at := range q.Placements {
						if q.Name == name && clear(g.Taken, at) && (!sparing || clear(g.Idle, at)) {
							return i, Room{ProfileID: q.ID, Name: q.Name, Placement: at}
						}
					}
				}
			}
		}
	}
	return -1, Room{}
}

// grid is four memory slices wide.
func grid() *gpu.Profiles {
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

// building is a GPU that makes instances on demand and has none.
func building(index int) GPUView {
	d := device(index, api.ModeMIG)
	d.Grid = grid()
	for _, q := range d.Grid.GI {
		d.Profiles = append(d.Profiles, ProfileView{Name: q.Name, Slices: q.Slices, Memory: q.Memory})
	}
	return d
}

// workshop is a table with somebody who makes its instances.
type workshop struct {
	*Table
	t          *testing.T
	view       View
	now        time.Time
	generation uint64
	wanted     int
}

func openWorkshop(t *testing.T, gpus int, grants ...Grant) *workshop {
	t.Helper()
	w := &workshop{t: t, now: epoch, view: View{Generation: 1, Grants: grants}}
	for i := range gpus {
		w.view.GPUs = append(w.view.GPUs, building(i))
	}
	w.Table = New(Config{Walls: &wall{}, Rooms: firstFit{}, Now: func() time.Time { return w.now }, Wanted: func() { w.wanted++ }})
	w.show()
	return w
}

func (w *workshop) show() {
	w.view.GPUs = slices.Clone(w.view.GPUs)
	for i := range w.view.GPUs {
		w.view.GPUs[i].Instances = slices.Clone(w.view.GPUs[i].Instances)
	}
	w.Update(w.view)
}

// close closes GPUs for a moment, as who makes something there does.
func (w *workshop) close(list []Making, closed string) {
	w.view.GPUs = slices.Clone(w.view.GPUs)
	for _, m := range list {
		d := &w.view.GPUs[w.view.index(m.GPU)]
		d.Closed, d.Soon = closed, closed != ""
	}
	w.show()
}

// finish makes what was taken, or fails on some GPUs.
func (w *workshop) finish(list []Making, failed ...gpu.UUID) {
	bad := map[gpu.UUID]bool{}
	for _, id := range failed {
		bad[id] = true
	}
	w.close(list, "")
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
	w.show()
	w.EndMakings(list, bad)
}

// build makes all that is wanted now and tells what it was.
func (w *workshop) build() string {
	list := w.TakeMakings()
	w.close(list, "it is being changed")
	w.finish(list)
	return made(list)
}

func made(list []Making) string {
	var out []string
	for _, m := range list {
		out = append(out, fmt.Sprintf("%s on %s at %d", m.Name, m.GPU, m.Placement.Start))
	}
	return strings.Join(out, ", ")
}

func (w *workshop) where(k *Ticket) string {
	w.t.Helper()
	if l, ok := w.Get(k.ID()); ok {
		return fmt.Sprintf("%s on %s at %d, number %d", l.Place.Profile, l.Place.GPUs[0], l.Place.Instance.Start, l.Place.Generation)
	}
	for _, l := range w.List() {
		if l.ID == k.ID() {
			return "waits: " + l.Waiting
		}
	}
	return "gone"
}

func (w *workshop) expect(k *Ticket, want string) {
	w.t.Helper()
	if got := w.where(k); !strings.HasPrefix(got, want) {
		w.t.Errorf("the request stands at %q, want %q", got, want)
	}
}

func (w *workshop) end(k *Ticket) {
	w.t.Helper()
	if err := w.Ended(w.t.Context(), k.ID(), "it ended"); err != nil {
		w.t.Fatal(err)
	}
}

func many(g Grant, n int) Grant { g.Spec.MaxLeases = &n; return g }

func TestAnInstanceIsMade(t *testing.T) {
	w := openWorkshop(t, 1, many(mig("a", "half", "2g.12gb"), 4))
	k, err := ask(w.Table, "a", "half") // without waiting: it fits, by making one
	if err != nil {
		t.Fatal(err)
	}
	w.expect(k, "waits: 2g.12gb is made for it on GPU 0")
	if w.wanted == 0 {
		t.Error("nobody was told that there is something to make")
	}
	if got := w.build(); got != "2g.12gb on GPU-0 at 0" {
		t.Errorf("made %s", got)
	}
	w.expect(k, "2g.12gb on GPU-0 at 0, number 1")

	// An idle one is taken before another is made.
	w.end(k)
	again := queue(t, w.Table, "a", "half")
	w.expect(again, "2g.12gb on GPU-0 at 0, number 1")
	if list := w.TakeMakings(); len(list) != 0 {
		t.Errorf("made %s for nobody", made(list))
	}
}

func TestWhatIsMadeIsItsRequestsOwn(t *testing.T) {
	high := with(mig("b", "half", "2g.12gb"), func(g *Grant) { g.Priority = "high" })
	w := openWorkshop(t, 1, many(mig("a", "half", "2g.12gb"), 4), many(high, 4))
	low := queue(t, w.Table, "a", "half")
	list := w.TakeMakings()
	w.close(list, "it is being changed")
	first, second := queue(t, w.Table, "b", "half"), queue(t, w.Table, "b", "half")
	w.finish(list)
	w.expect(low, "2g.12gb on GPU-0 at 0")
	w.expect(first, "waits: 2g.12gb is made for it")
	w.expect(second, "waits: no room for another 2g.12gb")
	if got := w.build(); got != "2g.12gb on GPU-0 at 2" {
		t.Errorf("then made %s", got)
	}
	w.expect(first, "2g.12gb on GPU-0 at 2")
}

func TestWhatNobodyBeganGoesToTheFirst(t *testing.T) {
	high := with(mig("b", "whole", "4g.24gb"), func(g *Grant) { g.Priority = "high" })
	w := openWorkshop(t, 1, mig("a", "half", "2g.12gb"), high)
	low, first := queue(t, w.Table, "a", "half"), queue(t, w.Table, "b", "whole")
	if got := w.build(); got != "4g.24gb on GPU-0 at 0" {
		t.Errorf("made %s", got)
	}
	w.expect(first, "4g.24gb on GPU-0 at 0")
	w.expect(low, "waits: no room for another 2g.12gb")
}

func TestTheSmallDoNotStarveTheLarge(t *testing.T) {
	w := openWorkshop(t, 1, many(mig("a", "small", "1g.6gb"), 8), mig("b", "whole", "4g.24gb"))
	one, two := queue(t, w.Table, "a", "small"), queue(t, w.Table, "a", "small")
	w.build()
	large := queue(t, w.Table, "b", "whole")
	w.expect(large, "waits: no room")
	if _, err := ask(w.Table, "a", "small"); err == nil {
		t.Error("a small one was let in before the large one that waits for its room")
	}
	three := queue(t, w.Table, "a", "small")
	w.end(one)
	w.expect(three, "waits: no room") // The idle instance is in the room that the large one waits for.
	w.end(two)
	if got := w.build(); got != "4g.24gb on GPU-0 at 0" {
		t.Errorf("made %s", got)
	}
	w.expect(large, "4g.24gb on GPU-0 at 0")
	w.end(large)
	w.build()
	w.expect(three, "1g.6gb on GPU-0 at 0")
}

func TestAMakingThatFails(t *testing.T) {
	w := openWorkshop(t, 2, many(mig("a", "half", "2g.12gb"), 4))
	waits, err := ask(w.Table, "a", "half")
	if err != nil {
		t.Fatal(err)
	}
	list := w.TakeMakings()
	w.close(list, "it is being changed")
	w.finish(list, "GPU-0")
	w.expect(waits, "waits: 2g.12gb is made for it on GPU 1")
	list = w.TakeMakings()
	w.close(list, "it is being changed")
	w.finish(list, "GPU-1")
	w.expect(waits, "gone") // He did not want to wait.
	if _, err := waits.Await(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "no room for another 2g.12gb") {
		t.Errorf("he was told %v", err)
	}

	patient := queue(t, w.Table, "a", "half")
	for range 2 {
		list := w.TakeMakings()
		w.finish(list, "GPU-0", "GPU-1")
	}
	for range 5 {
		w.show()
		if list := w.TakeMakings(); len(list) != 0 {
			t.Fatalf("%s is tried again at once", made(list))
		}
	}
	w.now = w.now.Add(shunFor)
	w.show()
	if got := w.build(); got != "2g.12gb on GPU-0 at 0" {
		t.Errorf("later made %s", got)
	}
	w.expect(patient, "2g.12gb on GPU-0 at 0")
}

func TestManyAreMadeAtOnce(t *testing.T) {
	w := openWorkshop(t, 2, many(mig("a", "small", "1g.6gb"), 9), many(mig("b", "half", "2g.12gb"), 9))
	for range 3 {
		queue(t, w.Table, "a", "small")
		queue(t, w.Table, "b", "half")
	}
	list := w.TakeMakings()
	for i := range list {
		for _, m := range list[:i] {
			if m.GPU == list[i].GPU && m.Placement.Overlaps(list[i].Placement) {
				t.Errorf("one room for two: %s", made([]Making{m, list[i]}))
			}
		}
	}
	if len(list) != 5 { // Three small ones take three quarters of one GPU's half and of the other's.
		t.Errorf("%d are made: %s", len(list), made(list))
	}
	w.finish(list)
	if n := len(w.Live()); n != len(list) {
		t.Errorf("%d have a place, of %d for whom one was made", n, len(list))
	}
}

// An idle instance goes for somebody's room, and is given to nobody in between.
func TestAnIdleOneMakesRoom(t *testing.T) {
	w := openWorkshop(t, 1, many(mig("a", "small", "1g.6gb"), 9), mig("b", "whole", "4g.24gb"))
	k := queue(t, w.Table, "a", "small")
	w.build()
	w.end(k)
	large := queue(t, w.Table, "b", "whole")
	list := w.TakeMakings()
	small := queue(t, w.Table, "a", "small")
	w.expect(small, "waits: ")
	if n := len(w.Unneeded()["GPU-0"]); n != 0 {
		t.Errorf("%d instances are needed by nobody while their room is", n)
	}
	w.finish(list)
	w.expect(large, "4g.24gb on GPU-0 at 0")
	w.expect(small, "waits: no room")
}

func TestNothingIsMadeWhereItMayNot(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(d *GPUView)
		says   string
	}{
		{"the layout is fixed", func(d *GPUView) { d.Grid = nil }, "there is no 2g.12gb instance now"},
		{"it is held", func(d *GPUView) { d.Closed = "it is held" }, "GPU 0 is closed: it is held"},
		{"another's instance is in the way", func(d *GPUView) {
			in := instance(0, "4g.24gb", 4, 0, 4, 24*gib)
			in.Stays, in.Unusable = true, "it was not made by gpushare"
			d.Instances = []InstanceView{in}
		}, "4g.24gb at 0 on GPU 0 is in the way: it was not made by gpushare"},
		{"a process of no lease has it all", func(d *GPUView) {
			in := instance(0, "4g.24gb", 4, 0, 4, 24*gib)
			in.Stays, in.Held = true, true
			d.Instances = []InstanceView{in}
		}, "no room for another 2g.12gb instance"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := openWorkshop(t, 1, mig("a", "half", "2g.12gb"))
			c.change(&w.view.GPUs[0])
			w.show()
			_, err := ask(w.Table, "a", "half")
			var e *api.Error
			if !errors.As(err, &e) || e.Kind != api.KindUnavailable || !strings.Contains(e.Message, c.says) {
				t.Errorf("refused with %v, want %q in it", err, c.says)
			}
			if list := w.TakeMakings(); len(list) != 0 {
				t.Errorf("%s is made", made(list))
			}
		})
	}
}

// A reserved grant has its room although nothing is there, and nothing is made before somebody comes.
func TestReservedRoom(t *testing.T) {
	w := openWorkshop(t, 1, many(mig("a", "small", "1g.6gb"), 9), with(mig("b", "half", "2g.12gb"), func(g *Grant) { g.Spec.Reserved = true }))
	if list := w.TakeMakings(); len(list) != 0 {
		t.Errorf("%s is made for nobody", made(list))
	}
	for range 2 {
		queue(t, w.Table, "a", "small")
	}
	if _, err := ask(w.Table, "a", "small"); err == nil {
		t.Error("the reserved room was given away")
	}
	w.build()
	k := queue(t, w.Table, "b", "half")
	w.build()
	w.expect(k, "2g.12gb on GPU-0 at 0")
	w.end(k)
	if n := len(w.Unneeded()["GPU-0"]); n != 0 {
		t.Errorf("%d instances are needed by nobody, and one is reserved", n)
	}
	if u := w.Unmet(); len(u) != 0 {
		t.Errorf("%v", u)
	}
}

func TestUnneeded(t *testing.T) {
	w := openWorkshop(t, 1, many(mig("a", "small", "1g.6gb"), 9))
	k, other := queue(t, w.Table, "a", "small"), queue(t, w.Table, "a", "small")
	w.build()
	if got := w.Unneeded(); len(got) != 0 {
		t.Errorf("%v are in use", got)
	}
	w.end(k)
	if got := w.Unneeded()["GPU-0"]; len(got) != 1 || got[0].Start != 0 {
		t.Errorf("needed by nobody: %v", got)
	}
	other.Cancel()
	if got := w.Unneeded()["GPU-0"]; len(got) != 2 {
		t.Errorf("needed by nobody: %v", got)
	}
}

// While something is made on a GPU nobody is refused for that it is closed.
func TestAMomentIsNoRefusal(t *testing.T) {
	w := openWorkshop(t, 1, many(mig("a", "small", "1g.6gb"), 9))
	first := queue(t, w.Table, "a", "small")
	list := w.TakeMakings()
	w.close(list, "it is being changed")
	k, err := ask(w.Table, "a", "small")
	if err != nil {
		t.Fatal(err)
	}
	w.finish(list)
	w.expect(first, "1g.6gb on GPU-0 at 0")
	w.expect(k, "waits: 1g.6gb is made for it")
	w.build()
	w.expect(k, "1g.6gb on GPU-0 at 1")
}
