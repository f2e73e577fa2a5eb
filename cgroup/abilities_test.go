package cgroup

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"
)

// abilitiesOf names the abilities of an adapter.
func abilitiesOf(p Port) []string {
	out := []string{}
	v := reflect.ValueOf(p.Abilities())
	for f, value := range v.Fields() {
		if !value.IsNil() {
			out = append(out, f.Name)
		}
	}
	return out
}

func TestAbilities(t *testing.T) {
	tree := func(devices bool) func(*testing.T) Port {
		return func(t *testing.T) Port {
			r := newTree(t)
			if devices && !r.info.Devices {
				t.Skipf("needs device programs: %s", r.info.NoDevices)
			}
			r.info.Devices = devices
			return r
		}
	}
	for name, c := range map[string]struct {
		open   func(*testing.T) Port
		can    []string
		slices bool
		driver CgroupDriver
	}{
		"cgroupfs":                 {tree(true), []string{"Hierarchy", "ScopeDevices", "PIDIndex", "OwnScope"}, true, DriverCgroupfs},
		"cgroupfs without devices": {tree(false), []string{"Hierarchy", "PIDIndex", "OwnScope"}, true, DriverCgroupfs},
		"processes":                {func(*testing.T) Port { return NewProcesses("a test") }, []string{}, false, DriverNone},
		"attachments":              {func(*testing.T) Port { return NewAttachments(AttachmentsOptions{Mount: t.TempDir()}) }, []string{"PIDIndex"}, false, DriverNone},
	} {
		t.Run(name, func(t *testing.T) {
			port := c.open(t)
			if got := abilitiesOf(port); !slices.Equal(got, c.can) {
				t.Errorf("its abilities are %v, want %v", got, c.can)
			}
			if i := port.Info(); i.Slices != c.slices || i.Driver != c.driver {
				t.Errorf("info %+v, want slices %v and driver %q", i, c.slices, c.driver)
			}
		})
	}
}

// The abilities of a Tree work on its scopes.
func TestTreeAbilitiesAreOfItsScopes(t *testing.T) {
	tree := newTree(t)
	a := tree.Abilities()
	p := spawn(t, "sleep", "60")
	st, err := tree.StartScope(t.Context(), train("l-1", p))
	if err != nil {
		t.Fatal(err)
	}
	if got := a.PIDIndex(); !maps.Equal(got, map[int]string{p.PID: "l-1"}) {
		t.Errorf("processes of scopes: %v", got)
	}
	if ps, err := a.Hierarchy.Processes(st.Path); err != nil || !slices.Equal(ps, []Process{p}) {
		t.Errorf("processes in %s: %v, %v", st.Path, ps, err)
	}
	slice, err := tree.Slice(t.Context(), SliceName{Tenant: "vision", Grant: "train"})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(a.Hierarchy.Dir(slice.Path))
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, e := range entries {
		if e.IsDir() && a.OwnScope(e.Name()) {
			own++
		}
	}
	if own != 1 || a.OwnScope("libpod-4711") {
		t.Errorf("%d cgroups below the slice are scopes of the tree, or another program's cgroup is", own)
	}
}
