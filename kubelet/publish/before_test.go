package publish_test

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// published is what the API server has of it.
func published(r *resourceslice.DriverResources) (out []resourceapi.ResourceSlice) {
	for _, s := range r.Pools[pool].Slices {
		spec := resourceapi.ResourceSliceSpec{Devices: s.Devices, SharedCounters: s.SharedCounters}
		out = append(out, resourceapi.ResourceSlice{Spec: spec})
	}
	return out
}

// The instances of a GPU that is lost when the driver starts are published as before, with the taint that moves pods away and with all
// counters that they use. What is not for Kubernetes any more is not.
func TestInstancesThatWereNotRead(t *testing.T) {
	t.Parallel()
	b, err := board.Find("a100-80")
	if err != nil {
		t.Fatal(err)
	}
	r := publish.Resources(newWorld(t, b, 2).node(), pool)
	before := published(&r)
	for name, c := range map[string]struct {
		change func(n *publish.Node)
		kept   bool
		evicts bool
	}{
		"lost":                 {func(n *publish.Node) { n.Status.GPUs[0].State = "lost" }, true, true},
		"not read yet":         {func(*publish.Node) {}, true, false},
		"lost, of an engine":   {func(n *publish.Node) { n.Status.GPUs[0].State, n.Status.GPUs[0].Owner = "lost", "slurm" }, false, false},
		"without a grant":      {func(n *publish.Node) { n.Tenant.Grants = nil }, false, false},
		"without a tenant":     {func(n *publish.Node) { n.Tenant = nil }, false, false},
		"in another mode":      {func(n *publish.Node) { n.Status.GPUs[0].Mode = api.ModeExclusive }, false, false},
		"nothing is published": {func(n *publish.Node) { n.Before = nil }, false, false},
	} {
		n := newWorld(t, b, 2).node()
		n.MIG, n.Status.GPUs[0].MIG, n.Before = &api.MIGList{}, nil, before
		c.change(n)
		const half = "gpu-carved-mig-3g-40gb-0"
		d, there := devicesOf(n)[half]
		evicts := slices.ContainsFunc(
			d.Taints,
			func(x resourceapi.DeviceTaint) bool { return x.Effect == resourceapi.DeviceTaintEffectNoExecute },
		)
		if there != c.kept || evicts != c.evicts {
			t.Errorf("%s: it is published %v with %+v", name, there, d.Taints)
		}
		sets := map[string]int{}
		r := publish.Resources(n, pool)
		for _, s := range r.Pools[pool].Slices {
			for _, c := range s.SharedCounters {
				sets[c.Name]++
			}
		}
		for _, s := range r.Pools[pool].Slices {
			for _, d := range s.Devices {
				for _, use := range d.ConsumesCounters {
					if sets[use.CounterSet] != 1 {
						t.Errorf("%s: device %s uses %s, which is there %d times", name, d.Name, use.CounterSet, sets[use.CounterSet])
					}
				}
			}
		}
	}
}
