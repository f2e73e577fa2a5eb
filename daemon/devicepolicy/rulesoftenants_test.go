package devicepolicy

import (
	"slices"
	"testing"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
)

// A rule that all tenants have is one, and one that differs in its access is another.
func TestRulesOfTenantsAreDistinct(t *testing.T) {
	shared, other := cgroup.DeviceRule{Name: "nvidia0", Access: "rw"}, cgroup.DeviceRule{Name: "nvidia0", Access: "rwm"}
	var w planner.DesiredSlices
	add := func(tenant, grant string, rules ...cgroup.DeviceRule) {
		w.Slices = append(w.Slices, cgroup.Slice{Name: cgroup.SliceName{Tenant: tenant, Grant: grant}, Devices: rules})
	}
	for _, tenant := range []string{"red", "blue", "green"} {
		add(tenant, "", shared, cgroup.DeviceRule{Name: "nvidiactl", Access: "rw"})
		add(tenant, "train", cgroup.DeviceRule{Name: "of a grant", Access: "rw"})
	}
	add("black", "", other)
	want := []cgroup.DeviceRule{shared, {Name: "nvidiactl", Access: "rw"}, other}
	if got := rulesOfTenants(&w); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
