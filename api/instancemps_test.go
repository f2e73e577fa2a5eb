package api_test

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// What a share of a MIG instance cannot have is refused with a reason.
func TestValidateShareOfAnInstance(t *testing.T) {
	share := &api.ShareSpec{Share: 30}
	for _, c := range []struct {
		name string
		set  func(m *api.MIGSpec, g *api.GrantSpec)
		want string // in the finding; empty: it is valid
	}{
		{"valid", func(*api.MIGSpec, *api.GrantSpec) {}, ""},
		{"by slices", func(_ *api.MIGSpec, g *api.GrantSpec) { g.MIG, g.Slices = "", 3 }, ""},
		{"instances on demand", func(m *api.MIGSpec, _ *api.GrantSpec) { m.Layout, m.Dynamic = nil, true }, "an instance that is created on demand is for one lease"},
		{"not in the layout", func(m *api.MIGSpec, _ *api.GrantSpec) { m.MPS = api.LayoutOf("2g.10gb") }, "is not in the layout"},
		{"twice", func(m *api.MIGSpec, _ *api.GrantSpec) { m.MPS = api.LayoutOf("3g.20gb", "3g.20gb") }, "mps[1]"},
		{"a compute instance", func(m *api.MIGSpec, _ *api.GrantSpec) {
			m.Layout, m.MPS = api.LayoutOf("1c.3g.20gb", "2c.3g.20gb"), api.LayoutOf("1c.3g.20gb")
		}, "has several compute instances"},
		{"several compute instances", func(m *api.MIGSpec, _ *api.GrantSpec) { m.Layout = api.LayoutOf("3g.20gb", "1c.3g.20gb", "2c.3g.20gb") }, "with several compute instances"},
		{"reserved", func(_ *api.MIGSpec, g *api.GrantSpec) { g.Reserved = true }, "not possible for a share of a MIG instance"},
		{"a hard limit", func(_ *api.MIGSpec, g *api.GrantSpec) {
			memory := api.Bytes(1 << 30)
			g.Accept, g.MPS = api.AcceptHard, &api.ShareSpec{Share: 30, GPUMemory: &memory}
		}, "no hard limit of GPU memory"},
		{"time-sliced", func(_ *api.MIGSpec, g *api.GrantSpec) { g.MPS, g.Timeslice = nil, share }, "grants mig and timeslice at once"},
		{"three kinds", func(_ *api.MIGSpec, g *api.GrantSpec) { g.Timeslice = share }, "at once"},
	} {
		m := &api.MIGSpec{Layout: api.LayoutOf("3g.20gb"), MPS: api.LayoutOf("3g.20gb")}
		g := api.GrantSpec{Name: "part", MIG: "3g.20gb", MPS: share}
		c.set(m, &g)
		s := api.Spec{
			Version: "v1", GPUs: []api.GPUSpec{{Select: api.Selector{All: true}, Mode: api.ModeMIG, MIG: m}},
			Tenants: []api.TenantSpec{{Name: "red", Grants: []api.GrantSpec{g}}},
		}
		s.Normalize()
		switch bad := s.Validate(); {
		case c.want == "" && bad != nil:
			t.Errorf("%s: %v", c.name, bad)
		case c.want != "" && (len(bad) != 1 || !strings.Contains(bad[0].Path+": "+bad[0].Message, c.want)):
			t.Errorf("%s: %v", c.name, bad)
		}
	}
	g := api.GrantSpec{MIG: "3g.20gb", MPS: share}
	if g.Kind() != api.ModeMPS || g.Mode() != api.ModeMIG {
		t.Errorf("kind %s, mode %s", g.Kind(), g.Mode())
	}
}
