package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
)

// After an upgrade the driver names profiles differently: the condition has the old name and the new one.
func TestUnknownProfiles(t *testing.T) {
	spec := func(layout []string, grant string) *state.Desired {
		return &state.Desired{
			Spec:   &api.Spec{Tenants: []api.TenantSpec{{Name: "red", Grants: []api.GrantSpec{{Name: "cut", MIG: grant}}}}},
			GPUs:   map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: api.LayoutOf(layout...)}}},
			Grants: map[state.GrantKey][]gpu.UUID{{Tenant: "red", Grant: "cut"}: {observetest.One}},
		}
	}
	for _, c := range []struct {
		name   string
		layout []string
		grant  string
		rename map[string]string
		off    bool // MIG mode is off, and the driver reports no profiles then
		want   []string
	}{
		{name: "the names of the spec", layout: []string{"3g.20gb"}, grant: "3g.20gb"},
		{name: "within 5 %", layout: []string{"3g.20gb"}, grant: "3g.20gb", rename: map[string]string{"3g.20gb": "3g.21gb"}},
		{
			name: "by more", layout: []string{"3g.20gb"}, grant: "3g.20gb", rename: map[string]string{"3g.20gb": "3g.25gb"},
			want: []string{
				"the driver has no profile 3g.20gb, which grant cut of red names; the nearest on GPU 1 is 3g.25gb",
				"the driver has no profile 3g.20gb, which the layout of GPU 1 names; the nearest on GPU 1 is 3g.25gb",
			},
		},
		{
			name: "a compute instance", layout: []string{"2g.10gb"}, grant: "1c.3g.20gb", rename: map[string]string{"3g.20gb": "3g.25gb"},
			want: []string{"the driver has no profile 1c.3g.20gb, which grant cut of red names; the nearest on GPU 1 is 1c.3g.25gb"},
		},
		{name: "assumed profiles", layout: []string{"3g.20gb"}, grant: "3g.20gb", rename: map[string]string{"3g.20gb": "3g.25gb"}, off: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := observetest.Device(true)
			p := *g.Profiles
			p.GI = slices.Clone(p.GI)
			for i := range p.GI {
				if to, ok := c.rename[p.GI[i].Name]; ok {
					p.GI[i].Name = to
				}
			}
			g.Profiles, g.ProfilesAssumed, g.Identity.Index = &p, c.off, 1
			var got []string
			for _, found := range UnknownProfiles(spec(c.layout, c.grant), &observe.Node{GPUs: []observe.GPU{g}}) {
				got = append(got, found.Message)
				if found.Hint == "" {
					t.Errorf("%q has no hint", found.Message)
				}
			}
			slices.Sort(got)
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
