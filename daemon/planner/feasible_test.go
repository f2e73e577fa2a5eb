package planner

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
)

// desiredGrants is the desired state of one 40 GiB GPU with a reserve of 1 GiB and these grants.
func desiredGrants(overcommit bool, list ...api.GrantSpec) (*state.Desired, *observe.Node) {
	reserve := api.Bytes(1 << 30)
	d := &state.Desired{
		Spec:   &api.Spec{Node: api.NodeSpec{GPUMemoryReserve: &reserve}, Tenants: []api.TenantSpec{{Name: "red", Grants: list}}},
		GPUs:   map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeTimeslice, Overcommit: overcommit}},
		Grants: map[state.GrantKey][]gpu.UUID{},
	}
	for i := range list {
		d.Grants[state.GrantKey{Tenant: "red", Grant: list[i].Name}] = []gpu.UUID{observetest.One}
	}
	return d, &observe.Node{
		GPUs: []observe.GPU{
			{
				Snapshot: gpu.Snapshot{
					Identity: gpu.Identity{UUID: observetest.One, Index: 1},
					Memory:   gpu.Memory{Total: 40 << 30, Reserved: 1 << 30},
				},
			},
		},
	}
}

func shareGrant(name string, percent int, reserved bool) api.GrantSpec {
	return api.GrantSpec{Name: name, Timeslice: &api.ShareSpec{Share: api.Percent(percent)}, Reserved: reserved}
}

func lowLatencyGrant(name string, percent int, reserved bool) api.GrantSpec {
	g := shareGrant(name, percent, reserved)
	g.Latency = api.LatencyLow
	return g
}

func timesliceGrant(name string, gib int, reserved bool) api.GrantSpec {
	b := api.Bytes(gib) << 30
	return api.GrantSpec{Name: name, Timeslice: &api.ShareSpec{Share: 10, GPUMemory: &b}, Reserved: reserved}
}

func TestFeasibleSpec(t *testing.T) {
	for _, c := range []struct {
		name       string
		overcommit bool
		grants     []api.GrantSpec
		says       []string // empty: it is feasible
	}{
		{"all GPU memory", false, []api.GrantSpec{timesliceGrant("a", 38, false)}, nil},
		{"more than the GPU has", false, []api.GrantSpec{timesliceGrant("ok", 1, false), timesliceGrant("a", 39, false)}, []string{"tenants[0].grants[1].timeslice.gpu_memory", "39 GiB", "38 GiB"}},
		{"more, with overcommit", true, []api.GrantSpec{timesliceGrant("a", 39, false)}, nil},
		{"together too much, not reserved", false, []api.GrantSpec{timesliceGrant("a", 30, false), timesliceGrant("b", 30, false)}, nil},
		{"reserved together too much", false, []api.GrantSpec{timesliceGrant("a", 20, true), timesliceGrant("b", 19, true)}, []string{"reserved", "39 GiB", "38 GiB", "GPU 1"}},
		{"reserved together, and it fits", false, []api.GrantSpec{timesliceGrant("a", 20, true), timesliceGrant("b", 18, true), timesliceGrant("c", 30, false)}, nil},
		{
			"reserved shares together too much", false,
			[]api.GrantSpec{shareGrant("a", 80, true), shareGrant("free", 90, false), shareGrant("b", 80, true)},
			[]string{"tenants[0].grants[2].timeslice.share", "GPU 1 need 160% together; it has 100% (red/a 80%, red/b 80%)"},
		},
		{"reserved shares, and they fit", false, []api.GrantSpec{shareGrant("a", 70, true), shareGrant("b", 30, true), shareGrant("free", 90, false)}, nil},
		{"reserved shares too much, with overcommit", true, []api.GrantSpec{shareGrant("a", 80, true), shareGrant("b", 80, true)}, nil},
		{
			"latency: low together too much, with overcommit", true,
			[]api.GrantSpec{lowLatencyGrant("a", 50, true), shareGrant("b", 20, true), lowLatencyGrant("c", 40, true)},
			[]string{
				"tenants[0].grants[2].timeslice.share", "GPU 1 need 90% with latency: low together; it has 80% for that (red/a 50%, red/c 40%)",
			},
		},
		{"latency: low, and they fit", false, []api.GrantSpec{lowLatencyGrant("a", 40, true), lowLatencyGrant("b", 40, true), shareGrant("c", 20, true)}, nil},
		{"latency: low together too much, not reserved", false, []api.GrantSpec{lowLatencyGrant("a", 50, true), lowLatencyGrant("b", 50, false)}, nil},
		{"reserved too much, with overcommit", true, []api.GrantSpec{timesliceGrant("a", 30, true), timesliceGrant("b", 30, true)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := FeasibleSpec(desiredGrants(c.overcommit, c.grants...))
			if len(c.says) == 0 {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			var e *api.Error
			if !errors.As(err, &e) || e.Kind != api.KindInfeasible ||
				!strings.Contains(e.Hint, "nothing was changed") && len(e.Fields) == 0 {
				t.Fatalf("accepted, or refused for another reason: %v", err)
			}
			for _, word := range c.says {
				if !strings.Contains(e.Message, word) {
					t.Errorf("the refusal does not say %q: %s", word, e.Message)
				}
			}
		})
	}
}
