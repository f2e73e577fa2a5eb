package lease

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/test/enumeration"
)

// A large request waits for two GPUs, of which one is in use until a known time: the other is lent to what ends before, and to
// nothing else.
func TestSmallLeasesRunInAPlaceThatIsClaimed(t *testing.T) {
	v := View{Generation: 1, GPUs: []GPUView{device(0, api.ModeExclusive), device(1, api.ModeExclusive)}, Grants: []Grant{
		unlimited(exclusive("a", "one", 1)), unlimited(exclusive("a", "two", 2)),
	}}
	c := newClocked(t, v)
	first := c.queue("a", "one", 1001, time.Hour)
	large := c.queue("a", "two", 1001, 0)
	until := epoch.Add(time.Hour)
	if at := c.lease(large).ExpectedStart; at == nil || !at.Equal(until) {
		t.Errorf("it is expected to start at %v, want %v", at, until)
	}
	c.now = c.now.Add(10 * time.Minute)
	endless, long, short := c.queue("a", "one", 1001, 0), c.queue(
		"a", "one", 1001, 51*time.Minute,
	), c.queue("a", "one", 1001, 50*time.Minute)
	if isPlaced(c.Table, endless) || isPlaced(c.Table, long) || !isPlaced(c.Table, short) {
		t.Fatalf("%+v", c.List())
	}
	if l := c.lease(short); l.Expires == nil || !l.Expires.Equal(until) {
		t.Errorf("it ends at %v, want %v", l.Expires, until)
	}
	c.now = until
	c.end(short)
	if isPlaced(c.Table, large) || isPlaced(c.Table, long) || isPlaced(c.Table, endless) {
		t.Fatalf("%+v", c.List())
	}
	c.end(first)
	if !isPlaced(c.Table, large) {
		t.Error("the large request does not start when it was expected to")
	}
}

// What a request claims is lent only if its start is known.
func TestNothingIsLentWithoutAKnownEnd(t *testing.T) {
	for name, of := range map[string]func(v *View) (first time.Duration, origin string){
		"the lease in its way has no end":                        func(*View) (time.Duration, string) { return 0, "" },
		"the node only observes":                                 func(v *View) (time.Duration, string) { v.Observing = true; return time.Hour, "" },
		"the lease in its way is in place":                       func(*View) (time.Duration, string) { return time.Hour, OriginAttached },
		"a GPU that it may use opens soon":                       func(v *View) (time.Duration, string) { v.GPUs[2].ReopensSoon = true; return time.Hour, "" },
		"a GPU that it may use is used by a process of no lease": func(v *View) (time.Duration, string) { v.GPUs[2].Occupied = "pid 7"; return time.Hour, "" },
	} {
		t.Run(name, func(t *testing.T) {
			v := View{
				Generation: 1,
				GPUs:       []GPUView{device(0, api.ModeExclusive), device(1, api.ModeExclusive), device(2, api.ModeExclusive)},
				Grants: []Grant{
					unlimited(exclusive("a", "one", 1)), unlimited(exclusive("a", "two", 2)),
				},
			}
			v.GPUs[2].Closed = "cordoned"
			whole, origin := of(&v)
			c := newClocked(t, v)
			r := Request{Tenant: "a", Grant: "one", Admin: true, Origin: origin}
			if whole > 0 {
				r.MaxTime = new(api.Duration(whole))
			}
			if _, err := c.Submit(r); err != nil {
				t.Fatal(err)
			}
			c.startPlaced()
			large, short := c.queue("a", "two", 1001, 0), c.queue("a", "one", 1001, time.Minute)
			if isPlaced(c.Table, short) || c.lease(large).ExpectedStart != nil {
				t.Errorf("%+v", c.List())
			}
		})
	}
}

// A further lease of a grant costs no memory, but it keeps the grant's: it may not run longer than an earlier request waits for
// that memory.
func TestFurtherLeasesDoNotDelayALargeOne(t *testing.T) {
	v := View{
		Generation: 1,
		GPUs:       []GPUView{device(0, api.ModeTimeslice)},
		Grants:     []Grant{timeslice("a", "small", 10, 20*gib), timeslice("a", "large", 10, 30*gib)},
	}
	c := newClocked(t, v)
	first := c.queue("a", "small", 1001, time.Hour)
	large := c.queue("a", "large", 1001, 0)
	endless, long, short := c.queue("a", "small", 1001, 0), c.queue("a", "small", 1001, 2*time.Hour), c.queue("a", "small", 1001, time.Hour)
	if isPlaced(c.Table, endless) || isPlaced(c.Table, long) || !isPlaced(c.Table, short) {
		t.Fatalf("%+v", c.List())
	}
	c.now = c.now.Add(time.Hour)
	c.end(first)
	c.end(short)
	if !isPlaced(c.Table, large) {
		t.Errorf("%+v", c.List())
	}
}

// job is a request of a simulation, in minutes.
type job struct {
	at, runs int
	grant    string
	known    bool // it says for how long it runs
	early    int  // so much earlier than it says it ends
}

// never is how long a lease runs that does not end in a simulation.
const never = 1_000_000

// outcome is what a simulation found of each job.
type outcome struct {
	start    int // -1: it did not start
	expected int // the first start that was expected; -1: none
	lent     bool
}

// simulate runs jobs on the table until all have ended that end. With hide no request says for how long it runs. With
// inOrder each request is submitted when the one before it has started.
func simulate(t *testing.T, fail func(string, ...any), v View, jobs []job, hide, inOrder bool) []outcome {
	w := newDynamicFixture(t, 0)
	w.view = v
	w.view.GPUs = slices.Clone(v.GPUs)
	w.update()
	out, tickets := make([]outcome, len(jobs)), make([]*Ticket, len(jobs))
	for i := range out {
		out[i] = outcome{start: -1, expected: -1}
	}
	ends, pid, submitted := map[int][]string{}, 0, 0
	minute := func() int { return int(w.now.Sub(epoch).Minutes()) }
	last := map[string]time.Time{}
	advance := func() {
		for again := true; again; {
			again = false
			for w.HasPendingInstances() {
				w.createPending()
				again = true
			}
			for i, k := range tickets {
				if k == nil || out[i].start >= 0 || !isPlaced(w.Table, k) {
					continue
				}
				pid++
				if _, _, err := w.Start(t.Context(), k.ID(), Process{pid, 1}); err != nil {
					fail("%v", err)
				}
				l, _ := w.Get(k.ID())
				out[i].start, out[i].lent, again = minute(), l.EndBy != nil, true
				ends[minute()+jobs[i].runs] = append(ends[minute()+jobs[i].runs], k.ID())
			}
			for submitted < len(jobs) && jobs[submitted].at <= minute() && (!inOrder || submitted == 0 || out[submitted-1].start >= 0) {
				j := &jobs[submitted]
				r := Request{Tenant: "a", Grant: j.grant, Admin: true, UID: 1001, Wait: queueForever()}
				if j.known && !hide {
					r.MaxTime = new(api.Duration(time.Duration(j.runs+j.early) * time.Minute))
				}
				k, err := w.Submit(r)
				if err != nil {
					fail("%v", err)
				}
				tickets[submitted] = k
				submitted, again = submitted+1, true
			}
		}
		for i, k := range tickets {
			if k == nil || out[i].start >= 0 {
				continue
			}
			for _, l := range w.List() {
				if l.ID != k.ID() || l.ExpectedStart == nil {
					continue
				}
				if before, ok := last[l.ID]; ok && l.ExpectedStart.After(before) {
					fail("at %d job %d is expected to start at %v, before it was %v", minute(), i, l.ExpectedStart, before)
				}
				last[l.ID] = *l.ExpectedStart
				if out[i].expected < 0 {
					out[i].expected = int(l.ExpectedStart.Sub(epoch).Minutes())
				}
			}
		}
	}
	for {
		advance()
		next := never
		for at := range ends {
			next = min(next, at)
		}
		if submitted < len(jobs) && jobs[submitted].at > minute() {
			next = min(next, jobs[submitted].at)
		}
		if next >= never {
			return out
		}
		w.now = epoch.Add(time.Duration(next) * time.Minute)
		for _, id := range ends[next] {
			if err := w.Ended(t.Context(), id, "exited"); err != nil {
				fail("%v", err)
			}
		}
		delete(ends, next)
	}
}

// inOrderOnGPUs is first come, first served by count: no request starts before the one ahead of it.
func inOrderOnGPUs(gpus int, jobs []job, wants map[string]int) []int {
	starts, previous := make([]int, len(jobs)), 0
	for i, j := range jobs {
		for at := max(j.at, previous); ; at++ {
			busy := 0
			for k := range i {
				if starts[k] <= at && at < starts[k]+jobs[k].runs {
					busy += wants[jobs[k].grant]
				}
			}
			if busy+wants[j.grant] <= gpus {
				starts[i], previous = at, at
				break
			}
		}
	}
	return starts
}

// With random arrivals on whole GPUs no request starts later than first come, first served, so at no time fewer have started, and
// none starts later than it was first expected to.
func TestBackfillDelaysNoRequest(t *testing.T) {
	wants := map[string]int{"one": 1, "two": 2, "three": 3}
	earlier := 0
	rapid.Check(t, func(r *rapid.T) {
		v := View{
			Generation: 1,
			Grants: []Grant{
				unlimited(exclusive("a", "one", 1)),
				unlimited(exclusive("a", "two", 2)),
				unlimited(exclusive("a", "three", 3)),
			},
		}
		gpus := rapid.IntRange(3, 5).Draw(r, "GPUs")
		for i := range gpus {
			v.GPUs = append(v.GPUs, device(i, api.ModeExclusive))
		}
		var jobs []job
		at := 0
		for range rapid.IntRange(2, 14).Draw(r, "jobs") {
			at += rapid.IntRange(0, 10).Draw(r, "pause")
			jobs = append(jobs, job{
				at,
				rapid.IntRange(1, 30).Draw(r, "runs"),
				rapid.SampledFrom([]string{"one", "one", "two", "three"}).Draw(r, "grant"),
				true,
				0,
			})
		}
		got, want := simulate(t, r.Fatalf, v, jobs, false, false), inOrderOnGPUs(gpus, jobs, wants)
		for i := range jobs {
			if got[i].start > want[i] {
				r.Fatalf("job %d of %+v starts at %d, first come, first served at %d: %+v, %v", i, jobs, got[i].start, want[i], got, want)
			}
			if got[i].expected >= 0 && got[i].start > got[i].expected {
				r.Fatalf("job %d of %+v starts at %d, and was expected to at %d", i, jobs, got[i].start, got[i].expected)
			}
			if got[i].start < want[i] {
				earlier++
			}
		}
	})
	if earlier == 0 {
		t.Error("nothing ever started earlier")
	}
}

// On every kind of place: the large request that waits starts no later than without backfill, and where a place is as good as
// another at no time have fewer started than first come, first served. Some leases have no end.
func TestBackfillOnEveryKind(t *testing.T) {
	all := crowds()
	if enumeration.Sampled() {
		names := slices.Sorted(maps.Keys(all))
		rapid.Check(t, func(r *rapid.T) { all[rapid.SampledFrom(names).Draw(r, "kind")].check(t, r) })
		return
	}
	for name, kind := range all {
		t.Run(name, func(t *testing.T) {
			lent := 0
			for range 10 { // With shares it happens in few of the random crowds.
				if lent == 0 {
					rapid.Check(t, func(r *rapid.T) { lent += kind.check(t, r) })
				}
			}
			if lent == 0 {
				t.Error("nothing was ever let in")
			}
		})
	}
}

// crowd is a node, and the grants of small and of large requests for it.
type crowd struct {
	view         View
	small, large []string
	additive     bool // what fits does not depend on what is where
}

func crowds() map[string]crowd {
	return map[string]crowd{
		"whole GPUs": {
			View{
				GPUs: []GPUView{
					device(0, api.ModeExclusive),
					device(1, api.ModeExclusive),
					device(2, api.ModeExclusive),
					device(3, api.ModeExclusive),
				},
				Grants: []Grant{
					unlimited(exclusive("a", "one", 1)),
					unlimited(exclusive("a", "two", 2)),
					exclusive("a", "three", 3),
					exclusive("a", "four", 4),
				},
			},
			[]string{"one", "two"},
			[]string{"three", "four"},
			true,
		},
		"MIG instances": {View{GPUs: []GPUView{dynamicDevice(0), dynamicDevice(1)}, Grants: []Grant{
			unlimited(mig("a", "small", "1g.6gb")), unlimited(mig("a", "half", "2g.12gb")), mig("a", "all", "4g.24gb"),
		}}, []string{"small", "small", "half"}, []string{"half", "all"}, false},
		"time slices with memory": {View{GPUs: []GPUView{device(0, api.ModeTimeslice), device(1, api.ModeTimeslice)}, Grants: []Grant{
			timeslice("a", "s1", 10, 8*gib),
			timeslice("a", "s2", 10, 12*gib),
			timeslice("a", "s3", 10, 16*gib),
			timeslice("a", "s4", 10, 5*gib),
			timeslice("a", "l1", 10, 30*gib),
			timeslice("a", "l2", 10, 36*gib),
		}}, []string{"s1", "s2", "s3", "s4"}, []string{"l1", "l2"}, false},
		"MPS": {View{GPUs: []GPUView{device(0, api.ModeMPS), device(1, api.ModeMPS)}, Grants: []Grant{
			mps("a", "s1", 20, 8*gib),
			mps("a", "s2", 30, 4*gib),
			mps("a", "s3", 40, 16*gib),
			mps("a", "s4", 25, 5*gib),
			mps("a", "l1", 80, 10*gib),
			mps("a", "l2", 60, 30*gib),
		}}, []string{"s1", "s2", "s3", "s4"}, []string{"l1", "l2"}, false},
		"time slices of one GPU": {View{GPUs: []GPUView{device(0, api.ModeTimeslice)}, Grants: []Grant{
			timeslice("a", "s1", 10, 8*gib),
			timeslice("a", "s2", 10, 12*gib),
			timeslice("a", "s3", 10, 6*gib),
			timeslice("a", "l1", 10, 30*gib),
			timeslice("a", "l2", 10, 25*gib),
		}}, []string{"s1", "s2", "s3"}, []string{"l1", "l2"}, true},
		"MPS of one GPU": {View{GPUs: []GPUView{device(0, api.ModeMPS)}, Grants: []Grant{
			mps("a", "s1", 20, 8*gib),
			mps("a", "s2", 30, 4*gib),
			mps("a", "s3", 25, 6*gib),
			mps("a", "l1", 80, 10*gib),
			mps("a", "l2", 60, 30*gib),
		}}, []string{"s1", "s2", "s3"}, []string{"l1", "l2"}, true},
	}
}

// check simulates random requests, and returns how many places were lent.
func (kind crowd) check(t *testing.T, r *rapid.T) (lent int) {
	small := func(at int) job {
		j := job{at, rapid.IntRange(1, 40).Draw(r, "runs"), rapid.SampledFrom(kind.small).Draw(r, "grant"), true, 0}
		if rapid.IntRange(0, 5).Draw(r, "endless") == 0 {
			j.runs, j.known = never, false
		}
		return j
	}
	var jobs []job
	for range rapid.IntRange(1, 5).Draw(r, "before") {
		jobs = append(jobs, small(0))
	}
	large := len(jobs)
	jobs = append(jobs, job{1, 5, rapid.SampledFrom(kind.large).Draw(r, "large"), rapid.Bool().Draw(r, "known"), 0})
	at := 1
	for range rapid.IntRange(1, 8).Draw(r, "after") {
		at += rapid.IntRange(0, 8).Draw(r, "pause")
		jobs = append(jobs, small(at))
	}
	v := kind.view
	v.Generation = 1
	with, without := simulate(t, r.Fatalf, v, jobs, false, false), simulate(t, r.Fatalf, v, jobs, true, false)
	if s, w := with[large].start, without[large].start; w >= 0 && (s < 0 || s > w) {
		r.Fatalf("the large one, %d of %+v, starts at %d, and without backfill at %d: %+v, %+v", large, jobs, s, w, with, without)
	}
	if x := with[large].expected; x >= 0 && (with[large].start < 0 || with[large].start > x) {
		r.Fatalf("the large one, %d of %+v, was expected at %d and starts at %d", large, jobs, x, with[large].start)
	}
	started := func(list []outcome, by int) (n int) {
		for _, x := range list {
			if x.start >= 0 && x.start <= by {
				n++
			}
		}
		return n
	}
	var inOrder []outcome
	if kind.additive { // Otherwise an earlier start may leave holes that a later one does not.
		inOrder = simulate(t, r.Fatalf, v, jobs, true, true)
	}
	for by := range 200 {
		if a, b := started(with, by), started(inOrder, by); a < b {
			r.Fatalf("%d of %+v start by %d, and first come, first served %d: %+v, %+v", a, jobs, by, b, with, inOrder)
		}
	}
	for _, x := range with {
		if x.lent {
			lent++
		}
	}
	return lent
}

// Leases may end earlier than they say. Whatever is let in meanwhile, no request starts later than it was first expected to, or is
// expected later than before.
func TestEarlyEndsBreakNoPromise(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		v := View{
			Generation: 1,
			GPUs: []GPUView{
				device(0, api.ModeExclusive),
				device(1, api.ModeExclusive),
				device(2, api.ModeExclusive),
				device(3, api.ModeTimeslice),
				device(4, api.ModeTimeslice),
			},
			Grants: []Grant{
				unlimited(exclusive("a", "one", 1)),
				unlimited(exclusive("a", "two", 2)),
				unlimited(exclusive("a", "three", 3)),
				timeslice("a", "s1", 10, 8*gib),
				timeslice("a", "s2", 10, 12*gib),
				timeslice("a", "s3", 10, 16*gib),
				timeslice("a", "l1", 10, 30*gib),
			},
		}
		var jobs []job
		at := 0
		for range rapid.IntRange(2, 16).Draw(r, "jobs") {
			at += rapid.IntRange(0, 8).Draw(r, "pause")
			grant := v.Grants[rapid.IntRange(0, len(v.Grants)-1).Draw(r, "grant")].Spec.Name
			jobs = append(jobs, job{
				at,
				rapid.IntRange(1, 30).Draw(r, "runs"),
				grant,
				rapid.IntRange(0, 4).Draw(r, "known") > 0,
				rapid.IntRange(0, 30).Draw(r, "early"),
			})
		}
		for i, x := range simulate(t, r.Fatalf, v, jobs, false, false) {
			if x.expected >= 0 && x.start > x.expected {
				r.Fatalf("job %d of %+v starts at %d, and was expected to at %d", i, jobs, x.start, x.expected)
			}
		}
	})
}

// The reasons are those of before, and name the claim.
func TestClaimsAreNamed(t *testing.T) {
	v := View{
		Generation: 1,
		GPUs:       []GPUView{device(0, api.ModeExclusive), device(1, api.ModeExclusive)},
		Grants:     []Grant{unlimited(exclusive("a", "one", 1)), exclusive("a", "two", 2)},
	}
	c := newClocked(t, v)
	c.queue("a", "one", 1001, time.Hour)
	c.queue("a", "two", 1001, 0)
	long := c.queue("a", "one", 1001, 2*time.Hour)
	if why := c.lease(long).Waiting; !strings.Contains(why, "1 more are claimed by an earlier request") {
		t.Error(fmt.Sprint("it waits because ", why))
	}
}

// When what is in the way of a large request is about to end, its place remains claimed, although another GPU lacks as little: a lease that is
// stopped takes a moment to end.
func TestAPlaceRemainsClaimedUntilTheEnd(t *testing.T) {
	v := View{Generation: 1, GPUs: []GPUView{device(0, api.ModeTimeslice), device(1, api.ModeTimeslice)}}
	for _, name := range []string{"endless", "first", "second", "small"} {
		v.Grants = append(v.Grants, timeslice("a", name, 10, 10*gib))
	}
	v.Grants = append(v.Grants, timeslice("a", "large", 10, 30*gib))
	c := newClocked(t, v)
	on := func(gpu, grant string, whole time.Duration) *Ticket {
		r := Request{Tenant: "a", Grant: grant, Admin: true, GPUs: []string{gpu}, Wait: queueForever()}
		if whole > 0 {
			r.MaxTime = new(api.Duration(whole))
		}
		k, err := c.Submit(r)
		if err != nil {
			t.Fatal(err)
		}
		c.startPlaced()
		return k
	}
	on("0", "endless", 0)
	first, second := on("1", "first", time.Hour), on("1", "second", time.Hour)
	large := c.queue("a", "large", 1001, 0)
	small := on("1", "small", 0)
	c.now = c.now.Add(time.Hour)
	c.end(first)
	if isPlaced(c.Table, small) {
		t.Fatal("a lease without an end got the place that the large request is about to get")
	}
	c.end(second)
	if !isPlaced(c.Table, large) {
		t.Errorf("%+v", c.List())
	}
}

// Two requests wait, and the first may stay in its place without an end: the second has a place of its own, into which no lease
// without an end is let.
func TestTwoThatWaitHaveTwoPlaces(t *testing.T) {
	dynamic := View{
		Generation: 1,
		GPUs:       []GPUView{dynamicDevice(0), dynamicDevice(1)},
		Grants: []Grant{
			unlimited(mig("a", "small", "1g.6gb")), unlimited(mig("a", "half", "2g.12gb")), mig("a", "all", "4g.24gb"),
		},
	}
	for _, c := range []struct {
		name string
		view View
		jobs []job
		of   int // this job
		by   int // starts by then
	}{
		{"instances", dynamic, []job{
			{0, 2, "small", true, 0},
			{0, 2, "half", true, 0},
			{0, never, "half", false, 0},
			{0, never, "half", false, 0},
			{0, never, "half", false, 0},
			{1, 5, "half", false, 0},
			{1, never, "small", false, 0},
		}, 5, 2},
		{"a large instance behind a smaller one", dynamic, []job{
			{0, 3, "small", true, 0},
			{0, 2, "half", true, 0},
			{0, never, "half", false, 0},
			{0, never, "half", false, 0},
			{0, 1, "half", true, 0},
			{1, 5, "all", true, 0},
			{1, never, "small", false, 0},
		}, 5, 3},
		{"shares", View{
			Generation: 1,
			GPUs:       []GPUView{device(0, api.ModeTimeslice), device(1, api.ModeTimeslice)},
			Grants: []Grant{
				timeslice("a", "x", 10, 20*gib), timeslice("a", "y", 10, 20*gib), timeslice("a", "small", 10, 16*gib),
				timeslice("a", "first", 10, 30*gib), timeslice("a", "second", 10, 30*gib),
			},
		}, []job{
			{0, 2, "x", true, 0},
			{0, 2, "y", true, 0},
			{1, never, "first", false, 0},
			{1, 5, "second", false, 0},
			{1, never, "small", false, 0},
		}, 3, 2},
		{"shares of MPS", View{
			Generation: 1,
			GPUs:       []GPUView{device(0, api.ModeMPS), device(1, api.ModeMPS)},
			Grants: []Grant{
				mps("a", "x", 60, gib), mps("a", "y", 60, gib), mps("a", "small", 30, gib), mps("a", "first", 80, gib), mps("a", "second", 80, gib),
			},
		}, []job{
			{0, 2, "x", true, 0},
			{0, 2, "y", true, 0},
			{1, never, "first", false, 0},
			{1, 5, "second", false, 0},
			{1, never, "small", false, 0},
		}, 3, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out := simulate(t, t.Fatalf, c.view, c.jobs, false, false); out[c.of].start < 0 || out[c.of].start > c.by {
				t.Errorf("job %d does not start by %d: %+v", c.of, c.by, out)
			}
		})
	}
}

// An instance that is being created is in use, before it has its lease: until the end of that lease, or without an end.
func TestWhatIsBeingCreatedIsInUse(t *testing.T) {
	w := newDynamicFixture(t, 2, unlimited(mig("a", "small", "1g.6gb")), unlimited(mig("a", "half", "2g.12gb")), mig("a", "all", "4g.24gb"))
	request := func(grant string, minutes int) *Ticket {
		t.Helper()
		r := Request{Tenant: "a", Grant: grant, Admin: true, Wait: queueForever()}
		if minutes > 0 {
			r.MaxTime = new(api.Duration(time.Duration(minutes) * time.Minute))
		}
		k, err := w.Submit(r)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	started := func(grant string, minutes int) *Ticket {
		t.Helper()
		k := request(grant, minutes)
		w.createPending()
		if _, _, err := w.Start(t.Context(), k.ID(), Process{PID: int(k.sequence) + 1000, Start: 1}); err != nil {
			t.Fatal(err)
		}
		return k
	}
	started("half", 5) // on the first GPU
	rest := started("half", 0)
	started("half", 20) // on the second
	w.end(rest)
	w.view.GPUs[0].Instances = w.view.GPUs[0].Instances[:1] // Its instance is removed.
	w.update()

	first := request("small", 0)
	w.TakePendingInstances()
	w.expect(first, "waits: 1g.6gb is being created for it")
	request("all", 0) // It waits for the second GPU: on the first one an instance without an end is being created.
	for i, c := range []struct {
		minutes int
		on      gpu.UUID // empty: it waits
	}{
		{0, "GPU-0"},
		{10, "GPU-1"}, // lent
		{0, ""},       // What is lent ends in time: the place still is claimed.
		{10, "GPU-1"},
	} {
		var on gpu.UUID
		k := request("small", c.minutes)
		w.TakePendingInstances()
		if k.pending != nil {
			on = k.pending.GPU
		}
		if on != c.on {
			t.Errorf("request %d has an instance on %q and waits because %q", i, on, k.waiting)
		}
	}
}
