package daemon

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
)

// grants makes a wanted state of one 40 GiB GPU, 1 GiB of it reserved for nobody, and these grants on it.
func grants(overcommit bool, list ...api.GrantSpec) (*desired, *observe.Node) {
	reserve := api.Bytes(1 << 30)
	d := &desired{
		spec:   &api.Spec{Node: api.NodeSpec{Reserve: &reserve}, Tenants: []api.TenantSpec{{Name: "red", GPU: list}}},
		gpus:   map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeTimeslice, Overcommit: overcommit}},
		grants: map[grantKey][]gpu.UUID{},
	}
	for i := range list {
		d.grants[grantKey{"red", list[i].Name}] = []gpu.UUID{observetest.One}
	}
	return d, &observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: observetest.One, Index: 1}, Memory: gpu.Memory{Total: 40 << 30, Reserved: 1 << 30}}}}}
}

func sliceOf(name string, gib int, reserved bool) api.GrantSpec {
	b := api.Bytes(gib) << 30
	return api.GrantSpec{Name: name, Timeslice: &api.ShareSpec{Share: 10, Memory: &b}, Reserved: reserved}
}

func TestFeasibleSpec(t *testing.T) {
	for _, c := range []struct {
		name       string
		overcommit bool
		grants     []api.GrantSpec
		says       []string // none: it is feasible
	}{
		{"all that there is", false, []api.GrantSpec{sliceOf("a", 38, false)}, nil},
		{"more than there is", false, []api.GrantSpec{sliceOf("ok", 1, false), sliceOf("a", 39, false)}, []string{"tenants[0].gpu[1].timeslice.memory", "39 GiB", "38 GiB"}},
		{"more, and meant", true, []api.GrantSpec{sliceOf("a", 39, false)}, nil},
		{"together too much, not reserved", false, []api.GrantSpec{sliceOf("a", 30, false), sliceOf("b", 30, false)}, nil},
		{"reserved together too much", false, []api.GrantSpec{sliceOf("a", 20, true), sliceOf("b", 19, true)}, []string{"reserved", "39 GiB", "38 GiB", "GPU 1"}},
		{"reserved beside each other", false, []api.GrantSpec{sliceOf("a", 20, true), sliceOf("b", 18, true), sliceOf("c", 30, false)}, nil},
		{"reserved too much, and meant", true, []api.GrantSpec{sliceOf("a", 30, true), sliceOf("b", 30, true)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := feasibleSpec(grants(c.overcommit, c.grants...))
			if len(c.says) == 0 {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			var e *api.Error
			if !errors.As(err, &e) || e.Kind != api.KindInfeasible || !strings.Contains(e.Hint, "nothing was changed") && len(e.Fields) == 0 {
				t.Fatalf("taken, or refused as something else: %v", err)
			}
			for _, word := range c.says {
				if !strings.Contains(e.Message, word) {
					t.Errorf("the refusal does not say %q: %s", word, e.Message)
				}
			}
		})
	}
}

func TestReserveIsOfSharedGPUs(t *testing.T) {
	d, _ := grants(false)
	for mode, want := range map[string]uint64{api.ModeTimeslice: 1 << 30, api.ModeMPS: 1 << 30, api.ModeMIG: 0, api.ModeExclusive: 0, api.ModeExternal: 0} {
		d.gpus[observetest.One].Mode = mode
		if got := d.reserve(observetest.One); got != want {
			t.Errorf("of a GPU in mode %s %d bytes are reserved, want %d", mode, got, want)
		}
	}
	if got := (&desired{}).reserve(observetest.One); got != 0 {
		t.Errorf("without a spec %d bytes are reserved", got)
	}
}

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
		{"as wanted", true, []string{"tasks", "memory"}, in(cgroup.Limits{TasksMax: &tasks}), "100", ""},
		{"another in force", true, []string{"tasks", "memory"}, in(cgroup.Limits{TasksMax: &other}), "50", ""},
		{"not set", true, []string{"tasks", "memory"}, in(cgroup.Limits{}), "", "not set"},
		{"no slice", true, []string{"tasks", "memory"}, nil, "", "not set"},
		{"no such controller", true, []string{"memory"}, in(cgroup.Limits{TasksMax: &tasks}), "", "no tasks limits on test"},
		{"only observing", false, []string{"tasks", "memory"}, in(cgroup.Limits{TasksMax: &tasks}), "", "observe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := limitsOf(tenant, c.enforcing, cgroup.Info{Adapter: "test", Limits: c.known}, c.observed)
			if len(list) != 2 { // What nobody asked for is not listed.
				t.Fatalf("%d limits are shown: %+v", len(list), list)
			}
			for _, l := range list {
				if l.Name == "tasks" && (l.Wanted != "100" || l.InForce != c.inForce || !strings.Contains(l.Reason, c.reason) || (l.Reason == "") != (c.reason == "")) {
					t.Errorf("it is shown as %+v", l)
				}
			}
		})
	}
}
