package lease

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// A GPU whose leases an engine places takes keyed leases of that engine, of others only those that it is shared with, and says who places
// there and what to do.
func TestTheEngineOfAGPUPlacesItsLeases(t *testing.T) {
	t.Parallel()
	of := func(index int, owner string, shared ...string) GPUView {
		d := device(index, api.ModeTimeslice)
		d.Owner, d.SharedWith = owner, shared
		return d
	}
	wholeOf := func(index int, owner string) GPUView {
		d := device(index, api.ModeExclusive)
		d.Owner = owner
		return d
	}
	partOf := func(index int, owner string) GPUView {
		d := partitioned(index)
		d.Owner = owner
		return d
	}
	jobs := []Grant{timeslice("a", "x", 10, 4*gib)}
	for _, c := range []struct {
		name    string
		gpus    []GPUView
		grants  []Grant
		key     string
		names   []string
		on      string
		refused []string
	}{
		{
			name: "gpushare run", gpus: []GPUView{of(0, "slurm")}, grants: jobs,
			refused: []string{"slurm places the leases on the GPUs that it may use", "sbatch", "share_with: [local]"},
		},
		{
			name: "gpushare run names it", gpus: []GPUView{of(0, "slurm"), of(1, "")}, grants: jobs, names: []string{"0"},
			refused: []string{"cannot place a lease of a on GPU 0: slurm places the leases there", "sbatch", "share_with: [local]"},
		},
		{
			name: "gpushare run on a GPU of Kubernetes", gpus: []GPUView{of(0, "kubernetes")}, grants: jobs,
			refused: []string{"kubernetes places the leases on the GPUs that it may use", "pod"},
		},
		{name: "gpushare run next to it", gpus: []GPUView{of(0, "slurm"), of(1, "")}, grants: jobs, on: "GPU-1"},
		{name: "gpushare run where it is shared", gpus: []GPUView{of(0, "slurm", "local")}, grants: jobs, on: "GPU-0"},
		{name: "the engine", gpus: []GPUView{of(0, "slurm")}, grants: jobs, key: "slurm:lab:1:0", on: "GPU-0"},
		{name: "the engine names it", gpus: []GPUView{of(0, "slurm")}, grants: jobs, key: "slurm:lab:1:0", names: []string{"0"}, on: "GPU-0"},
		{name: "the engine on a GPU of no engine", gpus: []GPUView{of(0, "")}, grants: jobs, key: "slurm:lab:1:0", on: "GPU-0"},
		{
			name: "another engine", gpus: []GPUView{of(0, "slurm", "local")}, grants: jobs, key: "kubernetes:uid",
			refused: []string{"slurm places the leases on the GPUs that it may use", "keys that begin with slurm:"},
		},
		{
			name: "another engine names it", gpus: []GPUView{of(0, "slurm")}, grants: jobs, key: "slurm2:lab:1:0", names: []string{"0"},
			refused: []string{"cannot place a lease of a on GPU 0: slurm places the leases there", "keys that begin with slurm:"},
		},
		{
			name: "a whole GPU", gpus: []GPUView{wholeOf(0, "slurm")}, grants: []Grant{exclusive("a", "whole", 1)},
			refused: []string{"slurm places the leases on the GPUs that it may use"},
		},
		{name: "a whole GPU of the engine", gpus: []GPUView{wholeOf(0, "slurm")}, grants: []Grant{exclusive("a", "w", 1)}, key: "slurm:1", on: "GPU-0"},
		{
			name: "an instance", gpus: []GPUView{partOf(0, "slurm")}, grants: []Grant{mig("a", "part", "1g.5gb")},
			refused: []string{"slurm places the leases on the GPUs that it may use"},
		},
		{name: "an instance of the engine", gpus: []GPUView{partOf(0, "slurm")}, grants: []Grant{mig("a", "p", "1g.5gb")}, key: "slurm:1", on: "GPU-0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tab, _ := table(t, View{GPUs: c.gpus, Grants: c.grants})
			r := Request{Tenant: "a", Admin: true, GPUs: c.names}
			if c.key != "" {
				r.Engine, r.Origin = &Engine{Key: c.key}, OriginAttached
			}
			k, err := tab.Submit(r)
			if len(c.refused) > 0 {
				e, ok := errors.AsType[*api.Error](err)
				if !ok || e.Kind != api.KindInfeasible {
					t.Fatalf("got %v", err)
				}
				for _, part := range c.refused {
					if !strings.Contains(e.Message+"; "+e.Hint, part) {
						t.Errorf("%q is not in %q, hint %q", part, e.Message, e.Hint)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			l, _ := tab.Get(k.ID())
			if !slices.Equal(l.Place.GPUs, []gpu.UUID{gpu.UUID(c.on)}) {
				t.Errorf("it is on %v, want %s", l.Place.GPUs, c.on)
			}
			if l.Terms.Placer != "" {
				t.Error("the terms of the lease keep who placed it")
			}
		})
	}
}

// What is full for others is not full for the engine, and the text of who waits says that the engine's GPU is not theirs.
func TestWaitingNextToTheEngine(t *testing.T) {
	t.Parallel()
	engine, open := device(0, api.ModeExclusive), device(1, api.ModeExclusive)
	engine.Owner = api.OwnerSlurm
	tab, _ := table(t, View{GPUs: []GPUView{engine, open}, Grants: []Grant{with(exclusive("a", "w", 1), func(g *Grant) {
		most := 4
		g.Spec.MaxLeases = &most
	})}})
	if _, l := mustSubmit(t, tab, "a", "w"); l.Place.GPUs[0] != open.UUID {
		t.Fatalf("it is on %v", l.Place.GPUs)
	}
	waits := queue(t, tab, "a", "w")
	if u := next(t, waits); !strings.Contains(u.Lease.Waiting, "GPU 0 is closed: slurm places the leases there") {
		t.Errorf("it waits: %q", u.Lease.Waiting)
	}
	if p, ok := tab.Previews()[Key{"a", "w"}]; ok {
		t.Errorf("the next lease of no engine would be on %v", p.GPUs)
	}
	k, err := tab.Submit(Request{Tenant: "a", Admin: true, Origin: OriginAttached, Engine: &Engine{Key: "slurm:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if l, _ := tab.Get(k.ID()); len(l.Place.GPUs) != 1 || l.Place.GPUs[0] != engine.UUID {
		t.Errorf("the job is on %v", l.Place.GPUs)
	}
	if isPlaced(tab, waits) {
		t.Error("who waits has the place of the engine")
	}
}
