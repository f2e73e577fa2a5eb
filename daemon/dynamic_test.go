package daemon

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
	"github.com/gpushare/gpushare/mig"
)

func onDemandSpec(keep time.Duration) *api.GPUSpec {
	k := api.Duration(keep)
	return &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Dynamic: true, Keep: &k}}
}

func TestPlanOnDemand(t *testing.T) {
	room := func(name string, start, size uint32) lease.Room {
		return lease.Room{Name: name, Placement: gpu.Placement{Start: start, Size: size}}
	}
	foreign := nobody()
	foreign.ours = func(gpu.UUID, *gpu.Instance) bool { return false }
	orphan := observetest.Instance(9, 0)
	orphan.Compute = nil
	for _, c := range []struct {
		name  string
		have  observe.GPU
		use   usage
		rooms []lease.Room
		gone  []gpu.Placement
		want  []string
		fails string
	}{
		{name: "one on an empty GPU", have: observetest.Device(true), use: nobody(), rooms: []lease.Room{room("2g.10gb", 4, 2)}, want: []string{"create 2g.10gb at 4"}},
		{name: "idle ones out of the way stay", have: observetest.Device(true, observetest.Instance(19, 0)), use: nobody(), rooms: []lease.Room{room("2g.10gb", 4, 2)}, want: []string{"create 2g.10gb at 4"}},
		{name: "idle ones in the way go", have: observetest.Device(true, observetest.Instance(19, 4), observetest.Instance(19, 6)), use: nobody(), rooms: []lease.Room{room("2g.10gb", 4, 2)}, want: []string{"destroy 1g.5gb at 4", "create 2g.10gb at 4"}},
		{name: "what is due goes", have: observetest.Device(true, observetest.Instance(19, 0), observetest.Instance(14, 4)), use: nobody(), gone: []gpu.Placement{{Start: 4, Size: 2}}, want: []string{"destroy 2g.10gb at 4"}},
		{name: "somebody came", have: observetest.Device(true, observetest.Instance(14, 4)), use: leaseAt(4), gone: []gpu.Placement{{Start: 4, Size: 2}}},
		{name: "somebody is in the way", have: observetest.Device(true, observetest.Instance(14, 4)), use: leaseAt(4), rooms: []lease.Room{room("3g.20gb", 4, 4)}, fails: "red-cut-1"},
		{name: "another's is in the way", have: observetest.Device(true, observetest.Instance(14, 4)), use: foreign, rooms: []lease.Room{room("3g.20gb", 4, 4)}, fails: "2g.10gb at 4"},
		{name: "it is there", have: observetest.Device(true, observetest.Instance(9, 4)), use: nobody(), rooms: []lease.Room{room("3g.20gb", 4, 4)}},
		{name: "it lacks its compute instance", have: observetest.Device(true, orphan), use: nobody(), rooms: []lease.Room{room("3g.20gb", 0, 4)}, want: []string{"complete 3g.20gb at 0"}},
		{name: "largest first", have: observetest.Device(true), use: nobody(), rooms: []lease.Room{room("1g.5gb", 0, 1), room("3g.20gb", 4, 4)}, want: []string{"create 3g.20gb at 4", "create 1g.5gb at 0"}},
		{name: "MIG mode is off", have: observetest.Device(false), use: nobody(), rooms: []lease.Room{room("1g.5gb", 0, 1)}, fails: "MIG mode is off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps, err := planOnDemand(onDemandSpec(time.Minute), &c.have, c.use, c.rooms, c.gone)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Fatalf("got %v, want an error with %q", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range steps {
				got = append(got, s.Text)
				if s.Disruption == step.Running {
					t.Errorf("%s disturbs %v", s.Text, s.Disturbs)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What nobody needs keeps its time while nobody needs it, and begins anew when somebody did.
func TestIdleIsKept(t *testing.T) {
	x := dynamic{}
	a, b := idleKey{observetest.One, gpu.Placement{Start: 0, Size: 1}, 1}, idleKey{observetest.One, gpu.Placement{Start: 1, Size: 1}, 2}
	again := idleKey{observetest.One, a.placement, 3}
	keep := func(gpu.UUID) time.Duration { return time.Minute }
	start := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		seconds  int
		unneeded []idleKey
		gone     int
		next     time.Duration
	}{
		{0, []idleKey{a}, 0, time.Minute},
		{20, []idleKey{a, b}, 0, 40 * time.Second},
		{30, []idleKey{b}, 0, 50 * time.Second}, // Somebody has a.
		{40, []idleKey{a, b}, 0, 40 * time.Second},
		{80, []idleKey{a, b}, 1, 20 * time.Second},
		{90, []idleKey{again}, 0, time.Minute}, // Another in a's place.
	} {
		x.note(c.unneeded, at(c.seconds))
		gone, next := x.due(keep, at(c.seconds))
		if len(gone[observetest.One]) != c.gone || next != c.next {
			t.Errorf("after %d s %v are due and the next in %s, want %d and %s", c.seconds, gone, next, c.gone, c.next)
		}
	}
}

// What others made stays others', and what is made again is another one.
func dynamicSpec(keep time.Duration) *api.GPUSpec {
	d := api.Duration(keep)
	return &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Dynamic: true, Keep: &d}}
}

func TestOwnLayout(t *testing.T) {
	here := store.Epoch{Boot: "b", Driver: "d"}
	mark := func(start, size uint32, n uint64) store.Mark {
		return store.Mark{Placement: gpu.Placement{Start: start, Size: size}, Generation: n}
	}
	made := func(kind string, in gpu.Instance) step.Step {
		return step.Step{Kind: kind, GPU: string(observetest.One), Args: step.Must(mig.InstanceArgs{Placed: mig.Placed{ProfileID: in.ProfileID, Placement: in.Placement}})}
	}
	fixed := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: []string{"3g.20gb"}}}
	three, small := observetest.Instance(9, 4), observetest.Instance(19, 0)
	had := store.Achieved{Epoch: here, Layout: []gpu.Instance{three}, Marks: []store.Mark{mark(4, 4, 5)}}
	gone := had
	gone.Marks = []store.Mark{{Placement: three.Placement, Generation: 5, Gone: true}}
	for _, c := range []struct {
		name  string
		e     *api.GPUSpec
		have  observe.GPU
		was   store.Achieved
		now   store.Epoch
		steps []step.Step
		want  []store.Mark
	}{
		{"nothing of it is ours", dynamicSpec(0), observetest.Device(true, three, small), store.Achieved{}, here, nil, nil},
		{"the layout has it", fixed, observetest.Device(true, three, small), store.Achieved{}, here, nil, []store.Mark{mark(4, 4, 11)}},
		{"it was ours", dynamicSpec(0), observetest.Device(true, three, small), had, here, nil, []store.Mark{mark(4, 4, 5)}},
		{"it is made", dynamicSpec(0), observetest.Device(true, three, small), had, here, []step.Step{made(mig.KindCreate, small)}, []store.Mark{mark(4, 4, 5), mark(0, 1, 11)}},
		{"it is made again", dynamicSpec(0), observetest.Device(true, three), had, here, []step.Step{made(mig.KindDestroy, three), made(mig.KindCreate, three)}, []store.Mark{mark(4, 4, 11)}},
		{"another boot", dynamicSpec(0), observetest.Device(true, three), had, store.Epoch{Boot: "c", Driver: "d"}, nil, nil},
		{"another boot, and the layout has it", fixed, observetest.Device(true, three), had, store.Epoch{Boot: "c", Driver: "d"}, nil, []store.Mark{mark(4, 4, 11)}},
		{"it was gone", fixed, observetest.Device(true, three), gone, here, nil, []store.Mark{mark(4, 4, 11)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := store.State{Instances: 10}
			layout, marks := ownLayout(&s, c.e, &c.have, &c.was, c.now, c.steps)
			if diff := cmp.Diff(c.want, marks); diff != "" {
				t.Error(diff)
			}
			if len(layout) != len(marks) {
				t.Errorf("%d instances with %d marks", len(layout), len(marks))
			}
		})
	}
}

func TestEstimate(t *testing.T) {
	node := &observe.Node{GPUs: []observe.GPU{
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: observetest.One, Model: "A100"}}}, {Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-2", Model: "A100"}}},
	}}
	s := &store.State{}
	steps := []step.Step{{ID: 1, Kind: "slice.set"}, {ID: 2, Kind: mig.KindDestroy, GPU: string(observetest.One)}, {ID: 3, Kind: mig.KindCreate, GPU: string(observetest.One)}, {ID: 4, Kind: mig.KindCreate, GPU: "GPU-2"}}
	plan := func() api.Plan {
		p := api.Plan{Steps: wireSteps(steps)}
		estimate(s.Times, node, &p)
		return p
	}
	if p := plan(); p.Estimate != 0 {
		t.Errorf("of nothing that was measured it says %v s", p.Estimate)
	}
	noteTimes(s, node, steps, []tookStep{{1, 1}, {2, 4}, {3, 2}, {4, 4}})
	if p := plan(); p.Estimate != 1+4+3 || p.Steps[2].Estimate != 3 {
		t.Errorf("it takes %v s, a creation %v s", p.Estimate, p.Steps[2].Estimate)
	}
	for range 100 { // A driver's update.
		noteTimes(s, node, steps, []tookStep{{3, 1}})
	}
	if got := wireTimes(s.Times); len(got) != 3 || got[1].Op != mig.KindCreate || got[1].Count != 102 || got[1].Mean > 1.01 {
		t.Errorf("known is %+v", got)
	}
}

// plant is GPUs that make instances on demand, with time that passes when told to.
type plant struct {
	t     *testing.T
	tab   *lease.Table
	want  *desired
	gpus  map[gpu.UUID]*observe.GPU
	order []gpu.UUID
	now   time.Time
	made  int
	marks map[gpu.UUID]map[gpu.Placement]uint64
}

func (p *plant) view(closed map[gpu.UUID]string) lease.View {
	n := &observe.Node{}
	for _, id := range p.order {
		n.GPUs = append(n.GPUs, *p.gpus[id])
	}
	v := viewOf(p.want, n, closed, func(gpu.UUID, *gpu.Instance) bool { return false })
	for i := range v.GPUs {
		v.GPUs[i].Soon = v.GPUs[i].Closed != ""
		for j := range v.GPUs[i].Instances {
			v.GPUs[i].Instances[j].Generation = p.marks[v.GPUs[i].UUID][v.GPUs[i].Instances[j].Placement]
		}
	}
	return v
}

func (p *plant) usage() usage {
	u := nobody()
	live := p.tab.Live()
	u.instance = func(id gpu.UUID, at gpu.Placement) (out []string) {
		for _, l := range live {
			if l.Place.GPUs[0] == id && *l.Place.Instance == at {
				out = append(out, l.ID)
			}
		}
		return out
	}
	return u
}

// work makes what is wanted as the daemon does: closed meanwhile, planned from what is there, and read back.
func (p *plant) work() {
	list := p.tab.TakeMakings()
	rooms := map[gpu.UUID][]lease.Room{}
	closed := map[gpu.UUID]string{}
	for _, m := range list {
		rooms[m.GPU] = append(rooms[m.GPU], m.Room)
		closed[m.GPU] = "it is being changed"
	}
	p.tab.Update(p.view(closed))
	failed := map[gpu.UUID]bool{}
	for id, r := range rooms {
		steps, err := planOnDemand(p.want.gpus[id], p.gpus[id], p.usage(), r, nil)
		if err != nil {
			p.t.Fatalf("what the table found room for cannot be planned: %v", err)
		}
		for _, s := range steps {
			if s.Disruption == step.Running {
				p.t.Fatalf("%s disturbs %v", s.Text, s.Disturbs)
			}
			p.carryOut(id, s)
		}
	}
	p.tab.Update(p.view(nil))
	p.tab.EndMakings(list, failed)
}

func (p *plant) carryOut(id gpu.UUID, s step.Step) {
	touched, _ := madeBy([]step.Step{s}, id)
	g := p.gpus[id]
	for at, make := range touched {
		if !make {
			g.Instances = slices.DeleteFunc(g.Instances, func(in gpu.Instance) bool { return in.Placement == at })
			continue
		}
		for _, in := range g.Instances {
			if in.Placement.Overlaps(at) {
				p.t.Fatalf("%s: %v lies there", s.Text, in.Placement)
			}
		}
		p.made++
		for _, q := range observetest.A100().GI {
			if strings.HasPrefix(s.Text, "create "+q.Name+" ") {
				in := observetest.Instance(q.ID, at.Start)
				in.Compute[0].UUID = gpu.UUID(fmt.Sprintf("MIG-%s-%d", id, at.Start))
				g.Instances = append(g.Instances, in)
			}
		}
		p.marks[id][at] = uint64(p.made)
	}
}

// Two tenants ask for instances of every size, at random and for as long as they like. All get theirs in the end, nobody
// shares, nobody is disturbed, and who came first for a size has it first.
func TestOnDemandInVirtualTime(t *testing.T) {
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 1))
		spec := &api.Spec{Node: api.NodeSpec{Enforce: "on"}}
		n := 99
		names := []string{"1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"}
		for _, tenant := range []string{"red", "blue"} {
			ts := api.TenantSpec{Name: tenant}
			for _, name := range names {
				ts.GPU = append(ts.GPU, api.GrantSpec{Name: name[:2], MIG: name, Leases: &n})
			}
			spec.Tenants = append(spec.Tenants, ts)
		}
		p := &plant{t: t, want: &desired{spec: spec, gpus: map[gpu.UUID]*api.GPUSpec{}}, gpus: map[gpu.UUID]*observe.GPU{}, now: time.Unix(1000, 0), marks: map[gpu.UUID]map[gpu.Placement]uint64{}}
		for i := range 2 {
			id := gpu.UUID(fmt.Sprintf("GPU-%d", i))
			g := observetest.Device(true)
			g.Identity.UUID, g.Identity.Index = id, i
			p.order, p.gpus[id], p.marks[id] = append(p.order, id), &g, map[gpu.Placement]uint64{}
			p.want.gpus[id] = onDemandSpec(time.Minute)
		}
		p.tab = lease.New(lease.Config{Walls: leasetest.NoWalls{}, Rooms: rooms{}, Now: func() time.Time { return p.now }})
		p.tab.Update(p.view(nil))
		var waiting []*lease.Ticket
		ends := map[string]time.Time{}
		forever := time.Duration(0)
		asked := 0
		for tick := 0; asked < 80 || len(waiting) > 0 || len(ends) > 0; tick++ {
			if tick > 2000 {
				t.Fatalf("seed %d: %d still wait, the first for %s", seed, len(waiting), p.tab.List()[0].Waiting)
			}
			p.now = p.now.Add(time.Second)
			for id, at := range ends {
				if p.now.After(at) {
					if err := p.tab.Ended(context.Background(), id, "done"); err != nil {
						t.Fatal(err)
					}
					delete(ends, id)
				}
			}
			if asked < 80 && random.IntN(3) > 0 {
				asked++
				k, err := p.tab.Submit(lease.Request{Tenant: []string{"red", "blue"}[random.IntN(2)], Admin: true, GPU: "mig:" + names[random.IntN(len(names))], Wait: &forever})
				if err != nil {
					t.Fatal(err)
				}
				waiting = append(waiting, k)
			}
			p.work()
			first := map[string]bool{} // sizes of which somebody who came earlier waits still
			left := waiting[:0]
			for _, k := range waiting {
				l, ok := p.tab.Get(k.ID())
				if !ok {
					for _, w := range p.tab.List() {
						if w.ID == k.ID() {
							first[w.Grant] = true
						}
					}
					left = append(left, k)
					continue
				}
				if first[l.Terms.Spec.Name] {
					t.Fatalf("seed %d: a %s was given to who came later", seed, l.Terms.Spec.MIG)
				}
				if l.Place.Generation == 0 || l.Place.Profile != l.Terms.Spec.MIG {
					t.Fatalf("seed %d: the place is %+v", seed, l.Place)
				}
				ends[k.ID()] = p.now.Add(time.Duration(1+random.IntN(20)) * time.Second)
			}
			waiting = left
			live := p.tab.Live()
			for i := range live {
				for j := range live[:i] {
					a, b := live[i].Place, live[j].Place
					if a.GPUs[0] == b.GPUs[0] && a.Instance.Overlaps(*b.Instance) {
						t.Fatalf("seed %d: %s and %s share", seed, live[i].ID, live[j].ID)
					}
				}
			}
		}
		if got := p.tab.Unneeded(); len(got["GPU-0"])+len(got["GPU-1"]) == 0 {
			t.Errorf("seed %d: at the end all is needed", seed)
		}
	}
}
