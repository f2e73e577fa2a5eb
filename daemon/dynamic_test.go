package daemon

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/planner/plannertest"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
	"github.com/gpushare/gpushare/test/enumeration"
)

// onDemandFixture is GPUs on which instances are created on demand, in time that the test advances.
type onDemandFixture struct {
	t           *testing.T
	tab         *lease.Table
	want        *state.Desired
	gpus        map[gpu.UUID]*observe.GPU
	order       []gpu.UUID
	now         time.Time
	created     int
	generations map[gpu.UUID]map[gpu.Placement]uint64
}

func (p *onDemandFixture) view(closed closing.Closures) lease.View {
	n := &observe.Node{}
	for _, id := range p.order {
		n.GPUs = append(n.GPUs, *p.gpus[id])
	}
	v := planner.ViewOf(p.want, n, closed, func(gpu.UUID, *gpu.Instance) bool { return false })
	for i := range v.GPUs {
		v.GPUs[i].ReopensSoon = v.GPUs[i].Closed != ""
		for j := range v.GPUs[i].Instances {
			v.GPUs[i].Instances[j].Generation = p.generations[v.GPUs[i].UUID][v.GPUs[i].Instances[j].Placement]
		}
	}
	return v
}

func (p *onDemandFixture) usage() planner.Usage {
	u := plannertest.NoUsage()
	live := p.tab.Live()
	u.Instance = func(id gpu.UUID, at gpu.Placement) (out []string) {
		for _, l := range live {
			if l.Place.GPUs[0] == id && *l.Place.Instance == at {
				out = append(out, l.ID)
			}
		}
		return out
	}
	return u
}

// createPending creates the pending instances as the daemon does: the GPUs are closed meanwhile, the plan is made from what
// exists, and the result is read back.
func (p *onDemandFixture) createPending() {
	list := p.tab.TakePendingInstances()
	capacity := map[gpu.UUID][]lease.InstanceSlot{}
	var closed closing.Closures
	for _, m := range list {
		capacity[m.GPU] = append(capacity[m.GPU], m.InstanceSlot)
		closed = append(closed, store.Closure{Where: closing.OnGPU(m.GPU), Kind: string(closing.Changing), Reason: "it is being changed"})
	}
	p.tab.Update(p.view(closed))
	failed := map[gpu.UUID]bool{}
	for id, r := range capacity {
		steps, err := planner.PlanOnDemand(p.want.GPUs[id], p.gpus[id], p.usage(), r, nil)
		if err != nil {
			p.t.Fatalf("an instance that the table found capacity for cannot be planned: %v", err)
		}
		for _, s := range steps {
			if s.Disruption == step.Running {
				p.t.Fatalf("%s disturbs %v", s.Text, s.Disturbs)
			}
			p.carryOut(id, s)
		}
	}
	p.tab.Update(p.view(nil))
	p.tab.FinishPendingInstances(list, failed)
}

func (p *onDemandFixture) carryOut(id gpu.UUID, s step.Step) {
	changed, _ := state.CreatedBy([]step.Step{s}, id)
	g := p.gpus[id]
	for at, create := range changed {
		if !create {
			g.Instances = slices.DeleteFunc(g.Instances, func(in gpu.Instance) bool { return in.Placement == at })
			continue
		}
		for _, in := range g.Instances {
			if in.Placement.Overlaps(at) {
				p.t.Fatalf("%s: it overlaps the instance at %v", s.Text, in.Placement)
			}
		}
		p.created++
		for _, q := range observetest.A100().GI {
			if strings.HasPrefix(s.Text, "create "+q.Name+" ") {
				in := observetest.Instance(q.ID, at.Start)
				in.Compute[0].UUID = gpu.UUID(fmt.Sprintf("MIG-%s-%d", id, at.Start))
				g.Instances = append(g.Instances, in)
			}
		}
		p.generations[id][at] = uint64(p.created)
	}
}

// Two tenants request instances of random sizes for random times. All requests get an instance in the end, no two leases
// share one, no lease is disturbed, and requests for a size are served in their order.
func TestOnDemandInVirtualTime(t *testing.T) {
	enumeration.Long(t)
	seeds := uint64(6)
	if enumeration.Raced() {
		seeds = 1
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 1))
		spec := &api.Spec{Node: api.NodeSpec{Enforce: "on"}}
		n := 99
		names := []string{"1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"}
		for _, tenant := range []string{"red", "blue"} {
			ts := api.TenantSpec{Name: tenant}
			for _, name := range names {
				ts.Grants = append(ts.Grants, api.GrantSpec{Name: name[:2], MIG: name, MaxLeases: &n})
			}
			spec.Tenants = append(spec.Tenants, ts)
		}
		p := &onDemandFixture{
			t:           t,
			want:        &state.Desired{Spec: spec, GPUs: map[gpu.UUID]*api.GPUSpec{}},
			gpus:        map[gpu.UUID]*observe.GPU{},
			now:         time.Unix(1000, 0),
			generations: map[gpu.UUID]map[gpu.Placement]uint64{},
		}
		for i := range 2 {
			id := gpu.UUID(fmt.Sprintf("GPU-%d", i))
			g := observetest.Device(true)
			g.Identity.UUID, g.Identity.Index = id, i
			p.order, p.gpus[id], p.generations[id] = append(p.order, id), &g, map[gpu.Placement]uint64{}
			p.want.GPUs[id] = onDemandSpec(time.Minute)
		}
		p.tab = lease.New(
			lease.Config{Isolation: leasetest.NoIsolation{}, Capacity: planner.Capacity{}, Now: func() time.Time { return p.now }},
		)
		p.tab.Update(p.view(nil))
		var waiting []*lease.Ticket
		ends := map[string]time.Time{}
		forever := time.Duration(0)
		submitted := 0
		for tick := 0; submitted < 80 || len(waiting) > 0 || len(ends) > 0; tick++ {
			if tick > 2000 {
				t.Fatalf("seed %d: %d still wait, the first because of %s", seed, len(waiting), p.tab.List()[0].Waiting)
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
			if submitted < 80 && random.IntN(3) > 0 {
				submitted++
				k, err := p.tab.Submit(lease.Request{
					Tenant: []string{"red", "blue"}[random.IntN(2)],
					Admin:  true,
					Kind:   "mig:" + names[random.IntN(len(names))],
					Wait:   &forever,
				})
				if err != nil {
					t.Fatal(err)
				}
				waiting = append(waiting, k)
			}
			p.createPending()
			// Sizes for which an earlier request of the tenant still waits. Which tenant is first depends on what they used.
			first := map[[2]string]bool{}
			left := waiting[:0]
			for _, k := range waiting {
				l, ok := p.tab.Get(k.ID())
				if !ok {
					for _, w := range p.tab.List() {
						if w.ID == k.ID() {
							first[[2]string{w.Tenant, w.Grant}] = true
						}
					}
					left = append(left, k)
					continue
				}
				if first[[2]string{l.Terms.Tenant, l.Terms.Spec.Name}] {
					t.Fatalf("seed %d: a later request got a %s first", seed, l.Terms.Spec.MIG)
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
		if got := p.tab.UnusedInstances(); len(got["GPU-0"])+len(got["GPU-1"]) == 0 {
			t.Errorf("seed %d: at the end no instance is unneeded", seed)
		}
	}
}

func onDemandSpec(keep time.Duration) *api.GPUSpec {
	k := api.Duration(keep)
	return &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Dynamic: true, Keep: &k}}
}
