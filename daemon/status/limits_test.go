package status

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
)

// A limit is shown as in force only when it was read back.
func TestLimitsShownAreThoseInForce(t *testing.T) {
	high, tasks := api.Bytes(1<<30), uint64(100)
	tenant := &api.TenantSpec{Name: "red", Tasks: &tasks, Memory: &api.HostMemSpec{Max: &high}}
	other := uint64(50)
	in := func(l cgroup.Limits) []cgroup.SliceState {
		return []cgroup.SliceState{{Name: cgroup.SliceName{Tenant: "red", Grant: "a"}}, {Name: cgroup.SliceName{Tenant: "red"}, Limits: l}}
	}
	for _, c := range []struct {
		name      string
		enforcing bool
		known     []string
		observed  []cgroup.SliceState
		inForce   string // of tasks
		reason    string
	}{
		{"as desired", true, []string{"tasks", "memory"}, in(cgroup.Limits{TasksMax: &tasks}), "100", ""},
		{"another in force", true, []string{"tasks", "memory"}, in(cgroup.Limits{TasksMax: &other}), "50", ""},
		{"not set", true, []string{"tasks", "memory"}, in(cgroup.Limits{}), "", "not set"},
		{"no slice", true, []string{"tasks", "memory"}, nil, "", "not set"},
		{"no such controller", true, []string{"memory"}, in(cgroup.Limits{TasksMax: &tasks}), "", "no tasks limits on test"},
		{"only observing", false, []string{"tasks", "memory"}, in(cgroup.Limits{}), "", "observe"},
		{"only observing, of an earlier spec", false, []string{"tasks", "memory"}, in(cgroup.Limits{TasksMax: &other}), "50", "the kernel keeps it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := limitsOf(tenant, c.enforcing, cgroup.Info{Adapter: "test", Limits: c.known}, c.observed)
			if len(list) != 2 { // A limit that the spec does not set is not listed.
				t.Fatalf("%d limits are shown: %+v", len(list), list)
			}
			for _, l := range list {
				if l.Name == "tasks" &&
					(l.Desired != "100" || l.InForce != c.inForce || !strings.Contains(l.Reason, c.reason) || (l.Reason == "") != (c.reason == "")) {
					t.Errorf("it is shown as %+v", l)
				}
			}
		})
	}
	kept := limitsOf(&api.TenantSpec{Name: "red"}, false, cgroup.Info{}, in(cgroup.Limits{TasksMax: &tasks}))
	if len(kept) != 1 || kept[0].InForce != "100" || kept[0].Desired != "" {
		t.Errorf("of a tenant without limits that had one: %+v", kept)
	}
}
