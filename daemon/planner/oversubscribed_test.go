package planner

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// Grants that cannot all have their share, or their GPU memory, are said, each sum by itself; what fits, and what the spec overcommits, is
// not.
func TestOversubscribedWarnings(t *testing.T) {
	grant := func(name string, percent int, gib uint64) api.GrantSpec {
		g := shareGrant(name, percent, false)
		if gib > 0 {
			bytes := api.Bytes(gib << 30)
			g.Timeslice.GPUMemory = &bytes
		}
		return g
	}
	for _, c := range []struct {
		name       string
		overcommit bool
		grants     []api.GrantSpec
		says       []string
	}{
		{"they fit", false, []api.GrantSpec{grant("a", 40, 20), grant("b", 60, 18)}, nil},
		{
			"shares", false,
			[]api.GrantSpec{grant("a", 90, 10), grant("b", 70, 10)},
			[]string{"the grants on GPU 1 need 160% together; it has 100% (red/a 90%, red/b 70%): while all have work each gets less"},
		},
		{
			"memory", false,
			[]api.GrantSpec{grant("a", 40, 30), grant("b", 40, 24)},
			[]string{"need 54 GiB together; it has 38 GiB after node.gpu_memory_reserve (red/a 30 GiB, red/b 24 GiB): a lease that finds too little"},
		},
		{"both", false, []api.GrantSpec{grant("a", 90, 30), grant("b", 70, 24)}, []string{"160%", "54 GiB"}},
		{"two sets", false, []api.GrantSpec{grant("a", 90, 0), grant("b", 70, 0), grant("c", 80, 0), grant("d", 60, 0)}, []string{"need", "need"}},
		{"overcommitted", true, []api.GrantSpec{grant("a", 90, 30), grant("b", 70, 24)}, nil},
	} {
		d, n := desiredGrants(c.overcommit, c.grants...)
		got := OversubscribedWarnings(d, n)
		if len(got) != len(c.says) {
			t.Errorf("%s: it says %q", c.name, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.says[i]) {
				t.Errorf("%s: it says %q, want %q", c.name, got[i], c.says[i])
			}
		}
		for i := range c.grants {
			if g := &d.Spec.Tenants[0].Grants[i]; g.Reserved || g.Timeslice.Share == 0 {
				t.Errorf("%s: the spec was changed: %+v", c.name, g)
			}
		}
	}
}
