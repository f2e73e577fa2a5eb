package devicepolicy

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
)

// hostWithCgroups returns the host's hierarchy with cgroups of the test.
func hostWithCgroups(t *testing.T, names ...string) (cgroup.Hierarchy, []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to attach device programs")
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		t.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	dir, err := os.MkdirTemp(h.Dir("/"), "gpushare-login-filter-")
	if err != nil {
		t.Skipf("needs a cgroup v2 hierarchy that may be written: %v", err)
	}
	top := "/" + filepath.Base(dir)
	t.Cleanup(func() {
		if err := h.Remove(top); err != nil {
			t.Error(err)
		}
	})
	if err := devices.Probe(h.Dir(top)); err != nil {
		t.Skipf("needs device programs: %v", err)
	}
	var cgroups []string
	for _, name := range names {
		cg := filepath.Join(top, name)
		if err := os.Mkdir(h.Dir(cg), 0o755); err != nil {
			t.Fatal(err)
		}
		cgroups = append(cgroups, cg)
	}
	return h, cgroups
}

// The next daemon finds the filters of units, ignores programs of others, and forgets a unit that has ended.
func TestFiltersOfUnitsAreFoundAgain(t *testing.T) {
	h, cg := hostWithCgroups(t, "unit.service", "of-another.service")
	runDir, info := t.TempDir(), cgroup.Info{Devices: true}
	gpu0 := devices.LoginFilter{Closed: []devices.Range{{Type: 'c', Major: 195}}}
	if _, err := devices.SetLoginFilter(h.Dir(cg[1]), gpu0); err != nil {
		t.Fatal(err)
	}
	states := func(g *LoginFilter) string {
		t.Helper()
		all, err := g.Filters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, st := range all {
			text += filepath.Base(st.Cgroup) + fmt.Sprint(st.Filter.Closed)
		}
		return text
	}
	set := func(g *LoginFilter) (bool, error) {
		return g.ChangeFilter(t.Context(), cg[0], func(*devices.LoginFilter) *devices.LoginFilter { return &gpu0 })
	}
	g := NewLoginFilter(h, "", runDir, info)
	if got := states(g); got != "" {
		t.Errorf("before: %s", got)
	}
	if wrote, err := set(g); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	next := NewLoginFilter(h, "", runDir, info)
	if got := states(next); got != "unit.service[c 195:0]" {
		t.Errorf("the next daemon finds %q", got)
	}
	if wrote, err := set(next); err != nil || wrote {
		t.Errorf("the same filter: wrote %v, %v", wrote, err)
	}
	if err := os.Remove(h.Dir(cg[0])); err != nil {
		t.Fatal(err)
	}
	if got := states(next); got != "" {
		t.Errorf("of a unit that ended: %s", got)
	}
	if wrote, err := set(next); err != nil || wrote {
		t.Errorf("a filter of a unit that ended: wrote %v, %v", wrote, err)
	}
	if units := NewLoginFilter(h, "", runDir, info).units; len(units) != 0 {
		t.Errorf("still in the file: %v", units)
	}
	if _, ok, err := devices.ReadLoginFilter(h.Dir(cg[1])); !ok || err != nil {
		t.Errorf("the program of another was changed: %v", err)
	}
}

func TestLoginFilterReason(t *testing.T) {
	for name, c := range map[string]struct {
		h      cgroup.Hierarchy
		logins string
		info   cgroup.Info
		why    string
	}{
		"no cgroups":  {logins: "/x", why: "no cgroups are available"},
		"no programs": {h: cgroup.Hierarchy{Mount: t.TempDir()}, logins: "/x", info: cgroup.Info{NoDevices: "the kernel accepts no device programs: EPERM"}, why: "the kernel accepts no device programs: EPERM"},
		"no logins":   {h: cgroup.Hierarchy{Mount: t.TempDir()}, info: cgroup.Info{Devices: true}, why: "the cgroup of the logins of this host is not known"},
		"nothing":     {h: cgroup.Hierarchy{Mount: t.TempDir()}, logins: "/x", info: cgroup.Info{Devices: true}},
	} {
		if got := NewLoginFilter(c.h, c.logins, "", c.info).Reason; got != c.why {
			t.Errorf("%s: %q, want %q", name, got, c.why)
		}
	}
}
