package lease

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

func reservedOn(tenant string, share float64, memory uint64, on ...gpu.UUID) Grant {
	g := reserved(timeslice(tenant, "r", share, memory))
	if len(on) > 0 {
		g.Spec.GPUs, g.GPUs = &api.Selector{All: true}, on
	}
	return g
}

// fitsByTrial tries every assignment.
func fitsByTrial(v *View) bool {
	low := map[gpu.UUID]float64{}
	var try func(n int, memory map[gpu.UUID]uint64, share map[gpu.UUID]float64) bool
	try = func(n int, memory map[gpu.UUID]uint64, share map[gpu.UUID]float64) bool {
		if n == len(v.Grants) {
			return true
		}
		g := &v.Grants[n]
		for i := range v.GPUs {
			d := &v.GPUs[i]
			if !g.mayUse(d) || !d.Overcommit && (memory[d.UUID]+g.memory() > d.budget() || share[d.UUID]+g.percent() > 100) {
				continue
			}
			if g.Spec.Latency != "" && low[d.UUID]+g.percent() > 80 {
				continue
			}
			if g.Spec.Latency != "" {
				low[d.UUID] += g.percent()
			}
			memory[d.UUID] += g.memory()
			share[d.UUID] += g.percent()
			if try(n+1, memory, share) {
				return true
			}
			memory[d.UUID] -= g.memory()
			share[d.UUID] -= g.percent()
			if g.Spec.Latency != "" {
				low[d.UUID] -= g.percent()
			}
		}
		return false
	}
	return try(0, map[gpu.UUID]uint64{}, map[gpu.UUID]float64{})
}

// ReservedMisfit is right against all assignments, its set is smallest, and the table finds places whenever there are.
func TestReservedMisfit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := View{Generation: 1}
		var ids []gpu.UUID
		for i := range rapid.IntRange(1, 4).Draw(t, "GPUs") {
			d := device(i, api.ModeTimeslice)
			d.Overcommit = rapid.IntRange(0, 5).Draw(t, "overcommit") == 0
			v.GPUs = append(v.GPUs, d)
			ids = append(ids, d.UUID)
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "grants") {
			on := rapid.SliceOfNDistinct(rapid.SampledFrom(ids), 1, len(ids), rapid.ID[gpu.UUID]).Draw(t, "on")
			g := reservedOn(
				fmt.Sprintf("t%d", i),
				float64(rapid.IntRange(1, 10).Draw(t, "share")*10),
				uint64(rapid.IntRange(1, 20).Draw(t, "memory"))*gib,
				on...)
			g.Priority = rapid.SampledFrom([]string{"low", "", "high"}).Draw(t, "priority")
			if g.percent() <= 80 && rapid.Bool().Draw(t, "low latency") {
				g.Spec.Latency = api.LatencyLow
			}
			v.Grants = append(v.Grants, g)
		}
		m := ReservedMisfit(&v)
		if (m == nil) != fitsByTrial(&v) {
			t.Fatalf("the misfit is %+v", m)
		}
		if m == nil {
			tab := New(Config{Isolation: &fakeIsolation{}})
			tab.Update(v)
			if over, unmet := tab.Oversubscribed(), tab.Unmet(); len(unmet) > 0 ||
				slices.ContainsFunc(over, func(o Oversubscribed) bool { return !v.gpu(o.GPU).Overcommit }) {
				t.Fatalf("they fit, and the table has %+v %+v", over, unmet)
			}
			return
		}
		in := func(g Grant) bool { return slices.Contains(m.Grants, g.Key()) }
		set := v
		set.Grants = slices.DeleteFunc(slices.Clone(v.Grants), func(g Grant) bool { return !in(g) })
		if fitsByTrial(&set) {
			t.Fatalf("%v fit", m.Grants)
		}
		for i := range set.Grants {
			less := set
			less.Grants = slices.Concat(set.Grants[:i], set.Grants[i+1:])
			if !fitsByTrial(&less) {
				t.Fatalf("%v do not fit without %v", m.Grants, set.Grants[i].Key())
			}
		}
	})
}

func TestMisfitSaysWhat(t *testing.T) {
	two := []GPUView{device(0, api.ModeTimeslice), device(1, api.ModeTimeslice)}
	for name, c := range map[string]struct {
		grants []Grant
		want   *Misfit
	}{
		"shares on one GPU": {
			[]Grant{reservedOn("a", 80, gib, "GPU-0"), reservedOn("b", 80, gib, "GPU-0"), reservedOn("c", 100, gib, "GPU-1")},
			&Misfit{Grants: []Key{{"a", "r"}, {"b", "r"}}, GPUs: []gpu.UUID{"GPU-0"}, Share: true},
		},
		"three on two GPUs": {
			[]Grant{reservedOn("a", 60, gib), reservedOn("b", 60, gib), reservedOn("c", 60, gib)},
			&Misfit{Grants: []Key{{"a", "r"}, {"b", "r"}, {"c", "r"}}, GPUs: []gpu.UUID{"GPU-0", "GPU-1"}, Share: true},
		},
		"memory": {
			[]Grant{reservedOn("a", 10, 30*gib, "GPU-1"), reservedOn("b", 10, 10*gib, "GPU-1")},
			&Misfit{Grants: []Key{{"a", "r"}, {"b", "r"}}, GPUs: []gpu.UUID{"GPU-1"}, Memory: true},
		},
		// Two of three have to share a GPU; each pair is too much of one of both.
		"only both together": {
			[]Grant{reservedOn("a", 60, gib), reservedOn("b", 60, 30*gib), reservedOn("c", 10, 39*gib)},
			&Misfit{Grants: []Key{{"a", "r"}, {"b", "r"}, {"c", "r"}}, GPUs: []gpu.UUID{"GPU-0", "GPU-1"}},
		},
		"latency: low": {
			[]Grant{lowLatency(reservedOn("a", 50, gib, "GPU-0")), reservedOn("b", 10, gib, "GPU-0"), lowLatency(reservedOn("c", 40, gib, "GPU-0"))},
			&Misfit{Grants: []Key{{"a", "r"}, {"c", "r"}}, GPUs: []gpu.UUID{"GPU-0"}, LowLatency: true},
		},
		"a grant that fits nowhere by itself is not the others' fault": {[]Grant{reservedOn("a", 10, 50*gib), reservedOn("b", 10, gib)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, ReservedMisfit(&View{GPUs: two, Grants: c.grants})); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("threads of MPS", func(t *testing.T) {
		v := View{
			GPUs:   []GPUView{device(0, api.ModeMPS)},
			Grants: []Grant{reserved(mps("a", "r", 60, gib)), reserved(mps("b", "r", 60, gib))},
		}
		if m := ReservedMisfit(&v); m == nil || !m.Share {
			t.Errorf("the misfit is %+v", m)
		}
	})
}

// A search that is too long refuses nothing.
func TestFitIsBounded(t *testing.T) {
	var v View
	for i := range 12 {
		v.GPUs = append(v.GPUs, device(i, api.ModeTimeslice))
	}
	for i := range 25 { // Two fit on a GPU, so 24 do.
		v.Grants = append(v.Grants, reservedOn(fmt.Sprintf("t%d", i), 40+float64(i)/100, gib))
	}
	if m := ReservedMisfit(&v); m != nil {
		t.Errorf("the misfit is %+v", m)
	}
}

func TestOversubscribed(t *testing.T) {
	v := View{
		Generation: 1,
		GPUs:       []GPUView{device(4, api.ModeTimeslice)},
		Grants:     []Grant{reservedOn("vision", 80, gib), timeslice("speech", "dev", 60, gib), timeslice("students", "lab", 20, gib)},
	}
	tab, _ := table(t, v)
	texts := func(list []Oversubscribed) (out []string) {
		for i := range list {
			out = append(out, list[i].Text())
		}
		return out
	}
	if got := texts(tab.Oversubscribed()); got != nil {
		t.Errorf("80%% reserved: %v", got)
	}
	mustSubmit(t, tab, "students", "lab")
	if got := texts(tab.Oversubscribed()); got != nil {
		t.Errorf("100%% in all: %v", got)
	}
	_, l := mustSubmit(t, tab, "speech", "dev") // Live shares that are too much are a warning, not a refusal.
	want := []string{
		"shares on GPU 4 add up to 160%: while all have work, vision/r 80% gets 50%, speech/dev 60% gets 38%, students/lab 20% gets 12%",
	}
	if d := cmp.Diff(want, texts(tab.Oversubscribed())); d != "" {
		t.Error(d)
	}
	less := v
	less.Grants = []Grant{v.Grants[0], timeslice("speech", "dev", 10, gib), timeslice("students", "lab", 20, gib)}
	want = []string{
		"shares on GPU 4 add up to 110%: while all have work, vision/r 80% gets 73%, students/lab 20% gets 18%, speech/dev 10% gets 9%",
	}
	if d := cmp.Diff(want, texts(tab.OversubscribedUnder(less))); d != "" {
		t.Error(d)
	}
	less.Grants[0] = lowLatency(less.Grants[0])
	want = []string{
		"shares on GPU 4 add up to 110%: while all have work, vision/r 80% gets 80%, students/lab 20% gets 13%, speech/dev 10% gets 7%",
	}
	if d := cmp.Diff(want, texts(tab.OversubscribedUnder(less))); d != "" {
		t.Errorf("with latency: low: %s", d)
	}
	less.Grants[0].Spec.Latency = ""
	less.Grants[0].Spec.Reserved = false
	if got := texts(tab.OversubscribedUnder(less)); got != nil {
		t.Errorf("without the reservation: %v", got)
	}
	if got, _ := tab.Get(l.ID); got.Terms.percent() != 60 {
		t.Error("a question about another spec changed the terms")
	}
}

// A lease of a reserved grant does not take the time that another reserved grant needs, although that GPU is idle.
func TestReservedGrantAvoidsReservedTime(t *testing.T) {
	v := View{Generation: 1, GPUs: []GPUView{device(0, api.ModeTimeslice), device(1, api.ModeTimeslice)}, Grants: []Grant{
		reservedOn("any", 80, gib),
		reservedOn("first", 80, gib, "GPU-0"),
		with(timeslice("c", "x", 90, gib), func(g *Grant) { g.Spec.GPUs, g.GPUs = &api.Selector{All: true}, []gpu.UUID{"GPU-1"} }),
	}}
	tab, _ := table(t, v)
	mustSubmit(t, tab, "c", "x")
	if _, l := mustSubmit(t, tab, "any", "r"); l.Place.GPUs[0] != "GPU-1" {
		t.Errorf("placed on %v", l.Place.GPUs)
	}
}

func lowLatency(g Grant) Grant { return with(g, func(g *Grant) { g.Spec.Latency = api.LatencyLow }) }

func reserved(g Grant) Grant { return with(g, func(g *Grant) { g.Spec.Reserved = true }) }
