package planner

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// renamed is a GPU whose driver names all profiles differently, by more than 5 %.
func renamed(g observe.GPU) observe.GPU {
	p := *g.Profiles
	p.GI = slices.Clone(p.GI)
	for i := range p.GI {
		n, _ := gpu.ParseProfile(p.GI[i].Name)
		n.GB += 1 + n.GB/4
		p.GI[i].Name = n.String()
	}
	g.Profiles = &p
	return g
}

var byProperties = []api.LayoutItem{{Slices: 3, GPUMemory: ">=19GiB"}, {Slices: 1}}

// A layout by properties has the same instances whatever the driver calls their profiles: as they are there is nothing to do, they are
// managed, and grants by name, in either spelling, and by properties match.
func TestALayoutByProperties(t *testing.T) {
	for name, g := range map[string]observe.GPU{
		"the names of the board": observetest.Device(true, observetest.Instance(9, 4), observetest.Instance(19, 0)),
		"other names":            renamed(observetest.Device(true, observetest.Instance(9, 4), observetest.Instance(19, 0))),
	} {
		t.Run(name, func(t *testing.T) {
			e := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: byProperties, MPS: byProperties[:1]}}
			d := &state.Desired{Spec: &api.Spec{}, GPUs: map[gpu.UUID]*api.GPUSpec{observetest.One: e}}
			n := &observe.Node{GPUs: []observe.GPU{g}}
			if p := PlanGPUs(d, n, NoUsage(), Authority{}); len(p.Steps) != 0 || len(p.Problems) != 0 {
				t.Errorf("the plan is %+v %v", p.Steps, p.Problems)
			}
			if c := UnknownProfiles(d, n); len(c) != 0 {
				t.Errorf("there are conditions: %v", c)
			}
			v := ViewOf(d, n, nil, func(gpu.UUID, *gpu.Instance) bool { return false }).GPUs[0]
			if len(v.Profiles) != 2 || v.Profiles[0].MPS || !v.Profiles[1].MPS || !v.Instances[0].MPS || v.Instances[1].MPS {
				t.Fatalf("the profiles are %+v, the instances %+v", v.Profiles, v.Instances)
			}
			for _, grant := range []api.GrantSpec{{MIG: v.Profiles[0].Name}, {Slices: 1}, {MIG: v.Profiles[1].Name, MPS: &api.ShareSpec{Share: 30}}} {
				if !slices.ContainsFunc(v.Profiles, func(p lease.ProfileView) bool { return lease.Matches(&grant, p) }) {
					t.Errorf("no profile of the layout satisfies %+v", grant)
				}
			}
		})
	}
}

// By properties it is the smallest profile, whatever exists already: the same spec makes the same instances on every GPU.
func TestALayoutByPropertiesHasTheSmallestProfile(t *testing.T) {
	wide := func(g observe.GPU) observe.GPU {
		p := *g.Profiles
		p.GI = append(slices.Clone(p.GI), gpu.Profile{
			ID: 15, Name: "1g.10gb", Slices: 1, Memory: 10 << 30, Max: 4,
			Placements: []gpu.Placement{{Start: 0, Size: 2}, {Start: 2, Size: 2}, {Start: 4, Size: 2}, {Start: 6, Size: 2}},
		})
		g.Profiles = &p
		return g
	}
	there := gpu.Instance{
		ID: 1, ProfileID: 15, Placement: gpu.Placement{Size: 2},
		Compute: []gpu.ComputeInstance{{UUID: "MIG-x", Placement: gpu.Placement{Size: 1}}},
	}
	for _, c := range []struct {
		name  string
		item  api.LayoutItem
		have  []gpu.Instance
		steps []string
	}{
		{"one slice", api.LayoutItem{Slices: 1}, nil, []string{"create 1g.5gb at 6"}},
		{"one slice, and a larger instance exists", api.LayoutItem{Slices: 1}, []gpu.Instance{there}, []string{"destroy 1g.10gb at 0", "create 1g.5gb at 6"}},
		{"one slice with more memory", api.LayoutItem{Slices: 1, GPUMemory: ">=8GiB"}, nil, []string{"create 1g.10gb at 6"}},
		{"one slice with more memory, which exists", api.LayoutItem{Slices: 1, GPUMemory: ">=8GiB"}, []gpu.Instance{there}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: []api.LayoutItem{c.item}}}
			steps, err := PlanGPU(e, new(wide(observetest.Device(true, c.have...))), NoUsage(), Authority{})
			var got []string
			for i := range steps {
				got = append(got, steps[i].Text)
			}
			if err != nil || !slices.Equal(got, c.steps) {
				t.Errorf("the steps are %q, want %q (%v)", got, c.steps, err)
			}
		})
	}
}

// Two profiles of the same slices, attributes and memory: which one is meant is not known, and both are named.
func TestALayoutByAmbiguousProperties(t *testing.T) {
	g := observetest.Device(true)
	p := *g.Profiles
	twin := p.GI[2]
	twin.ID, twin.Name = 77, "3g.20gb+gfx"
	p.GI = append(slices.Clone(p.GI), twin)
	g.Profiles = &p
	e := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: []api.LayoutItem{{Slices: 3}}}}
	_, err := PlanGPU(e, &g, NoUsage(), Authority{})
	if _, ok := errors.AsType[*mig.AmbiguousProfile](err); !ok || !strings.Contains(err.Error(), "this GPU has 3g.20gb and 3g.20gb+gfx") {
		t.Errorf("the error is %v", err)
	}
	e.MIG.Layout = api.LayoutOf("3g.20gb")
	if _, err := PlanGPU(e, &g, NoUsage(), Authority{}); err != nil {
		t.Errorf("by name: %v", err)
	}
}

// A lease of an instance that is shared through MPS goes on when the layout is written by properties, and when the driver names its
// profile differently.
func TestLeasesOfASharedInstanceByProperties(t *testing.T) {
	l := lease.Lease{
		ID: "red-part-1",
		Terms: lease.Grant{
			Tenant: "red",
			Spec:   api.GrantSpec{Name: "part", Slices: 3, MPS: &api.ShareSpec{Share: 30}},
		},
		Place: lease.Place{GPUs: []gpu.UUID{observetest.One}, Instance: &gpu.Placement{Start: 4, Size: 4}, Profile: "3g.20gb"},
	}
	for name, c := range map[string]struct {
		shared []api.LayoutItem
		stops  int
	}{
		"shared":     {byProperties[:1], 0},
		"not shared": {byProperties[1:], 1},
	} {
		for _, g := range []observe.GPU{
			observetest.Device(true, observetest.Instance(9, 4)), renamed(observetest.Device(true, observetest.Instance(9, 4))),
		} {
			d := &state.Desired{
				GPUs: map[gpu.UUID]*api.GPUSpec{
					observetest.One: {Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: byProperties, MPS: c.shared}},
				},
				Grants: map[state.GrantKey][]gpu.UUID{{Tenant: "red", Grant: "part"}: {observetest.One}},
			}
			if got := PlanStops(d, &observe.Node{GPUs: []observe.GPU{g}}, []lease.Lease{l}, nil, nil); len(got) != c.stops {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// The hint of a name that the driver does not have is what selects that profile, and only that one.
func TestPropertiesOfAName(t *testing.T) {
	g := observetest.Device(true)
	p := *g.Profiles
	p.GI = append(
		slices.Clone(p.GI),
		gpu.Profile{ID: 15, Name: "1g.12gb", Slices: 1, Memory: 10<<30 + 5<<20, Max: 4, Placements: []gpu.Placement{{Size: 2}}},
		gpu.Profile{
			ID:         20,
			Name:       "1g.6gb+me",
			Slices:     1,
			Memory:     5 << 30,
			Attributes: []string{"me"},
			Max:        1,
			Placements: []gpu.Placement{{Size: 1}},
		},
	)
	g.Profiles = &p
	for name, want := range map[string]string{
		"3g.30gb": "{slices: 3}", "1g.7gb": "{slices: 1}", "1g.11gb": `{slices: 1, gpu_memory: ">=10GiB"}`,
		"1g.5gb+me": "{slices: 1, attributes: [me]}", "1c.3g.30gb": "", "5g.30gb": "",
	} {
		item, ok := propertiesOf(&g, name)
		if got := item.String(); ok != (want != "") || ok && got != want {
			t.Errorf("%s gives %s, want %s", name, got, want)
		}
	}
}
