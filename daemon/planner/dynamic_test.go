package planner

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
)

func dynamicSpec(keep time.Duration) *api.GPUSpec {
	k := api.Duration(keep)
	return &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Dynamic: true, Keep: &k}}
}

func TestPlanOnDemand(t *testing.T) {
	slot := func(name string, start, size uint32) lease.InstanceSlot {
		return lease.InstanceSlot{Name: name, Placement: gpu.Placement{Start: start, Size: size}}
	}
	foreign := NoUsage()
	foreign.Managed = func(gpu.UUID, *gpu.Instance) bool { return false }
	withoutCompute := observetest.Instance(9, 0)
	withoutCompute.Compute = nil
	anonymous := observetest.Instance(9, 0) // It could not be created again.
	anonymous.Compute = []gpu.ComputeInstance{{Slices: 2}, {ID: 1, Slices: 1}}
	imported := NoUsage()
	imported.Imported = func(gpu.UUID, gpu.Placement) bool { return true }
	for _, c := range []struct {
		name   string
		have   observe.GPU
		use    Usage
		create []lease.InstanceSlot
		remove []gpu.Placement
		want   []string
		fails  string
	}{
		{name: "one on an empty GPU", have: observetest.Device(true), use: NoUsage(), create: []lease.InstanceSlot{slot("2g.10gb", 4, 2)}, want: []string{"create 2g.10gb at 4"}},
		{name: "idle ones that do not overlap stay", have: observetest.Device(true, observetest.Instance(19, 0)), use: NoUsage(), create: []lease.InstanceSlot{slot("2g.10gb", 4, 2)}, want: []string{"create 2g.10gb at 4"}},
		{name: "idle ones that overlap are removed", have: observetest.Device(true, observetest.Instance(19, 4), observetest.Instance(19, 6)), use: NoUsage(), create: []lease.InstanceSlot{slot("2g.10gb", 4, 2)}, want: []string{"destroy 1g.5gb at 4", "create 2g.10gb at 4"}},
		{name: "what is due is removed", have: observetest.Device(true, observetest.Instance(19, 0), observetest.Instance(14, 4)), use: NoUsage(), remove: []gpu.Placement{{Start: 4, Size: 2}}, want: []string{"destroy 2g.10gb at 4"}},
		{name: "it is in use again", have: observetest.Device(true, observetest.Instance(14, 4)), use: leaseAt(4), remove: []gpu.Placement{{Start: 4, Size: 2}}},
		{name: "an instance in use overlaps", have: observetest.Device(true, observetest.Instance(14, 4)), use: leaseAt(4), create: []lease.InstanceSlot{slot("3g.20gb", 4, 4)}, fails: "red-cut-1"},
		{name: "a foreign instance overlaps", have: observetest.Device(true, observetest.Instance(14, 4)), use: foreign, create: []lease.InstanceSlot{slot("3g.20gb", 4, 4)}, fails: "2g.10gb at 4"},
		{name: "it exists", have: observetest.Device(true, observetest.Instance(9, 4)), use: NoUsage(), create: []lease.InstanceSlot{slot("3g.20gb", 4, 4)}},
		{name: "its compute instance is missing", have: observetest.Device(true, withoutCompute), use: NoUsage(), create: []lease.InstanceSlot{slot("3g.20gb", 0, 4)}, want: []string{"complete 3g.20gb at 0"}},
		{name: "what could not be created again is removed", have: observetest.Device(true, anonymous), use: NoUsage(), remove: []gpu.Placement{{Size: 4}}, want: []string{"destroy 3g.20gb of 2c+1c at 0"}},
		{name: "unless it was imported", have: observetest.Device(true, anonymous), use: imported, create: []lease.InstanceSlot{slot("7g.40gb", 0, 8)}, fails: "could not be created again"},
		{name: "largest first", have: observetest.Device(true), use: NoUsage(), create: []lease.InstanceSlot{slot("1g.5gb", 0, 1), slot("3g.20gb", 4, 4)}, want: []string{"create 3g.20gb at 4", "create 1g.5gb at 0"}},
		{name: "MIG mode is off", have: observetest.Device(false), use: NoUsage(), create: []lease.InstanceSlot{slot("1g.5gb", 0, 1)}, fails: "MIG mode is off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps, err := PlanOnDemand(dynamicSpec(time.Minute), &c.have, c.use, c.create, c.remove)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Fatalf("got %v, want an error with %q", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range steps {
				got = append(got, s.Text)
				if s.Disruption == step.Running {
					t.Errorf("%s disturbs %v", s.Text, s.Disturbs)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
