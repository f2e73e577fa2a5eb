package instances

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner/plannertest"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/lease"
)

// A plan that would create nothing fails, so that the request avoids the GPU for a time: it would ask for the same again at once.
func TestInstanceThatIsThereIsNotCreated(t *testing.T) {
	spec := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Dynamic: true}}
	there := observetest.Device(true, observetest.Instance(9, 4))
	for _, c := range []struct {
		name   string
		create []lease.InstanceSlot
		remove []gpu.Placement
		steps  int
		fails  string
	}{
		{
			name:   "it is there",
			create: []lease.InstanceSlot{{Name: "3g.20gb", Placement: gpu.Placement{Start: 4, Size: 4}}},
			fails:  "cannot create 3g.20gb at 4 on GPU 1: it is there already",
		},
		{name: "it is not", create: []lease.InstanceSlot{{Name: "3g.20gb", Placement: gpu.Placement{Size: 4}}}, steps: 1},
		{name: "it is removed", remove: []gpu.Placement{{Start: 4, Size: 4}}, steps: 1},
		{name: "nothing is due"},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps, err := onDemand(spec, &there, plannertest.NoUsage(), c.create, c.remove)
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Fatalf("got %v, want an error with %q", err, c.fails)
			}
			if len(steps) != c.steps {
				t.Errorf("it has %d steps, want %d", len(steps), c.steps)
			}
		})
	}
}
