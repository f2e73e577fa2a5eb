package planner

import (
	"context"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// The real search finds what begins where an engine chose, and not an idle instance of that profile or a placement that costs less.
func TestCapacityWhereAnEngineChose(t *testing.T) {
	t.Parallel()
	g := observetest.Device(true)
	idle := lease.InstanceView{
		ProfileView: lease.ProfileView{Name: "1g.5gb", Slices: 1, Memory: 5 << 30},
		ProfileID:   19,
		Placement:   gpu.Placement{Start: 0, Size: 1},
		UUIDs:       []gpu.UUID{"MIG-idle"},
	}
	for start, name := range map[string]string{"0": "of the idle one", "2": "elsewhere", "5": "elsewhere too"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := lease.GPUView{UUID: "GPU-0", Mode: api.ModeMIG, DynamicProfiles: g.Profiles, Instances: []lease.InstanceView{idle}}
			for i := range g.Profiles.GI {
				q := &g.Profiles.GI[i]
				d.Profiles = append(
					d.Profiles,
					lease.ProfileView{Name: q.Name, Slices: q.Slices, Memory: q.Memory, Attributes: q.Attributes},
				)
			}
			table := lease.New(lease.Config{Isolation: leasetest.NoIsolation{}, Capacity: Capacity{}})
			table.Update(lease.View{
				Generation: 1,
				GPUs:       []lease.GPUView{d},
				Grants:     []lease.Grant{{Tenant: "a", Spec: api.GrantSpec{Name: "one", MIG: "1g.5gb"}}},
			})
			k, err := table.Submit(lease.Request{
				Tenant: "a", Admin: true, Origin: lease.OriginAttached, GPUs: []string{"0"}, Instance: start,
				Engine: &lease.Engine{Key: "slurm:1", BindBy: time.Now().Add(time.Hour)},
			})
			if err != nil {
				t.Fatal(err)
			}
			pending := table.TakePendingInstances()
			if start == "0" {
				if _, err := k.Await(context.Background(), nil); err != nil || len(pending) > 0 {
					t.Errorf("%v, and %+v is created", err, pending)
				}
				return
			}
			if len(pending) != 1 || start != string(rune('0'+pending[0].Placement.Start)) || pending[0].Name != "1g.5gb" {
				t.Errorf("created is %+v, want 1g.5gb at %s", pending, start)
			}
		})
	}
}
