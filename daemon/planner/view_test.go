package planner

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/store"
)

func held(id gpu.UUID) store.Closure {
	return store.Closure{Where: closing.OnGPU(id), Kind: string(closing.Held), Reason: "pid 7 of another tenant"}
}

func TestViewOf(t *testing.T) {
	reserve := api.Bytes(1 << 30)
	spec := &api.Spec{Node: api.NodeSpec{Enforce: "on", GPUMemoryReserve: &reserve}, Tenants: []api.TenantSpec{{
		Name: "red", Priority: "high", Grants: []api.GrantSpec{
			{
				Name: "cut",
				MIG:  "3g.20gb",
			},
			{Name: "part", Timeslice: &api.ShareSpec{Share: 30}, GPUs: &api.Selector{Index: api.List[int]{2}}},
		},
	}}}
	d := &state.Desired{Generation: 7, Spec: spec, GPUs: map[gpu.UUID]*api.GPUSpec{
		observetest.One: {Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: api.LayoutOf("3g.20gb", "1g.5gb")}},
		"GPU-2": {
			Mode:       api.ModeTimeslice,
			Overcommit: true,
		},
		"GPU-3": {Mode: api.ModeExclusive},
		"GPU-4": {Mode: api.ModeTimeslice},
		"GPU-5": {Mode: api.ModeExclusive},
	}, Grants: map[state.GrantKey][]gpu.UUID{{Tenant: "red", Grant: "cut"}: {observetest.One}, {Tenant: "red", Grant: "part"}: {"GPU-2"}}}
	plain := func(id gpu.UUID, index int) observe.GPU {
		return observe.GPU{
			Snapshot: gpu.Snapshot{
				Identity: gpu.Identity{UUID: id, Index: index, Memory: 40 << 30},
				Memory:   gpu.Memory{Total: 40 << 30, Reserved: 1 << 29},
			},
		}
	}
	half := observetest.Instance(19, 5)
	half.Compute = nil
	mig := observetest.Device(true, observetest.Instance(9, 0), half, observetest.Instance(19, 6))
	unnamed := observetest.Instance(19, 4)
	unnamed.Compute[0].UUID = ""
	mig.Instances = append(mig.Instances, unnamed)
	mig.MIG.Missing = &gpu.MissingMIG{Library: "12.470", Device: []string{"nvmlDeviceGetMigDeviceHandleByIndex"}}
	mig.Memory = gpu.Memory{Total: 40 << 30}
	lost := plain("GPU-4", 4)
	lost.Err, lost.Memory = errors.New("it does not answer"), gpu.Memory{}
	n := &observe.Node{GPUs: []observe.GPU{plain("GPU-0", 0), mig, plain("GPU-2", 2), plain("GPU-3", 3), lost, plain("GPU-5", 5)}}
	v := ViewOf(
		d, n, append(unanswered(n), held("GPU-5"), held("GPU-4")),
		func(_ gpu.UUID, in *gpu.Instance) bool { return in.Placement.Start == 6 },
	)

	if v.Generation != 7 || v.DriverUnavailable != "" {
		t.Errorf("generation %d, driver unavailable: %q", v.Generation, v.DriverUnavailable)
	}
	type brief struct {
		UUID              gpu.UUID
		Mode, Closed      string
		Capacity, Reserve uint64
		Overcommit        bool
	}
	var got []brief
	for _, g := range v.GPUs {
		got = append(got, brief{g.UUID, g.Mode, g.Closed, g.Capacity, g.Reserve, g.Overcommit})
	}
	want := []brief{ // The spec does not name GPU-0: it takes no lease.
		{observetest.One, api.ModeMIG, "", 40 << 30, 0, false},
		{"GPU-2", api.ModeTimeslice, "", 40<<30 - 1<<29, 1 << 30, true},
		{"GPU-3", api.ModeExclusive, "", 40<<30 - 1<<29, 0, false},
		{"GPU-4", api.ModeTimeslice, "it does not answer, and it is held", 40 << 30, 1 << 30, false},
		{"GPU-5", api.ModeExclusive, "it is held", 40<<30 - 1<<29, 0, false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	var instances, profiles []string
	for _, in := range v.GPUs[0].Instances {
		instances = append(instances, in.Name+" "+in.Unusable)
	}
	for _, p := range v.GPUs[0].Profiles {
		profiles = append(profiles, p.Name)
	}
	if diff := cmp.Diff([]string{
		"3g.20gb ", "1g.5gb it has no compute instance", "1g.5gb it is not managed by gpushare",
		"1g.5gb its MIG device cannot be found: the NVML library 12.470 lacks nvmlDeviceGetMigDeviceHandleByIndex",
	}, instances); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1g.5gb", "3g.20gb"}, profiles); diff != "" {
		t.Errorf("profiles of the layout (-want +got):\n%s", diff)
	}
	if len(v.Grants) != 2 || v.Grants[0].GPUs != nil || !cmp.Equal(v.Grants[1].GPUs, []gpu.UUID{"GPU-2"}) ||
		v.Grants[0].Priority != "high" {
		t.Errorf("grants %+v", v.Grants)
	}

	n.DriverErr = gpu.ErrNotLoaded
	if v := ViewOf(d, n, nil, func(gpu.UUID, *gpu.Instance) bool { return false }); v.DriverUnavailable != gpu.ErrNotLoaded.Error() {
		t.Errorf("without a driver the reason is %q", v.DriverUnavailable)
	}
	if v := ViewOf(&state.Desired{}, n, nil, nil); len(v.GPUs)+len(v.Grants) != 0 {
		t.Errorf("without a spec there are GPUs or grants: %+v", v)
	}
}
