package planner

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

func TestDeviceUsersAreNamed(t *testing.T) {
	for want, h := range map[string]DeviceUser{
		"pid 7 (it has ended)":     {PID: 7},
		"pid 7 (python, for 12 s)": {PID: 7, Name: "python", Age: 12 * time.Second},
		"pid 7 (python, tenant red, lease red-1, a.scope, for 5 min)":     {PID: 7, Name: "python", Tenant: "red", Lease: "red-1", Unit: "a.scope", Age: 5 * time.Minute},
		"pid 7 (dcgm-exporter, exporter.service, for 3 days; left alone)": {PID: 7, Name: "dcgm-exporter", Unit: "exporter.service", Age: 80 * time.Hour, Reason: "left alone"},
	} {
		if got := h.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Monitors block a reset and the removal of an instance, but no change without a reset. Force stops processes of users only.
func TestMonitorsInAPlan(t *testing.T) {
	whole := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: api.LayoutOf("7g.40gb")}}
	resetless := true
	hopper := observetest.With(observetest.Device(false), func(g *observe.GPU) { g.MIG.Resetless = &resetless })
	on := observetest.Device(true, observetest.Instance(9, 4))
	openGPU := OpenDevices{GPUs: map[gpu.UUID][]int{observetest.One: {42}}}
	openInstance := OpenDevices{Instances: map[InstanceKey][]int{{observetest.One, on.Instances[0].ID}: {42}}}
	for _, c := range []struct {
		name  string
		have  observe.GPU
		open  OpenDevices
		is    DeviceUser
		force bool
		kind  api.Kind // of the refusal; empty: it is planned
		says  string
		stops []string
	}{
		{name: "a reset, with a monitor", have: observetest.Device(false), open: openGPU, kind: api.KindInUse, says: "pid 42 (nvtop)"},
		{name: "a reset, with a monitor, by force", have: observetest.Device(false), open: openGPU, force: true, stops: []string{"stop pid 42 (nvtop)"}},
		{name: "a reset, with a system process", have: observetest.Device(false), open: openGPU, is: DeviceUser{Decision: Keep, Reason: "kept"}, kind: api.KindInfeasible, says: "pid 42 (nvtop; kept)"},
		{name: "a reset, with a system process, by force", have: observetest.Device(false), open: openGPU, is: DeviceUser{Decision: Keep, Reason: "kept"}, force: true, kind: api.KindInfeasible, says: "pid 42 (nvtop; kept)"},
		{name: "a reset, with a quiesced unit", have: observetest.Device(false), open: openGPU, is: DeviceUser{Decision: Quiesce}},
		{name: "a reset, with a process of gpushare", have: observetest.Device(false), open: openGPU, is: DeviceUser{Decision: Own}},
		{name: "a reset, with a process that has just ended", have: observetest.Device(false), open: openGPU, is: DeviceUser{Decision: Ended}},
		{name: "no reset, with a monitor", have: hopper, open: openGPU},
		{name: "a removed instance, with a monitor", have: on, open: openInstance, kind: api.KindInUse, says: "3g.20gb at 4 (pid 42 (nvtop))"},
		{name: "a removed instance, with a monitor, by force", have: on, open: openInstance, force: true, stops: []string{"stop pid 42 (nvtop)"}},
		{name: "a removed instance, with a system process, by force", have: on, open: openInstance, is: DeviceUser{Decision: Keep}, force: true, kind: api.KindInfeasible, says: "pid 42 (nvtop)"},
		{name: "a removed instance, with a quiesced unit", have: on, open: openInstance, is: DeviceUser{Decision: Quiesce}},
		{name: "a removed instance, the GPU is open", have: on, open: openGPU},
		{name: "by force, with a process of a lease", have: on, open: openInstance, is: DeviceUser{Lease: "red-1"}, force: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			use := NoUsage()
			use.OpenDevices = c.open
			use.Process = func(_ []*mps.State, pid int) DeviceUser {
				h := c.is
				h.PID, h.Start, h.Name = pid, 7, "nvtop"
				return h
			}
			node := &observe.Node{GPUs: []observe.GPU{c.have}}
			p := PlanGPUs(
				&state.Desired{GPUs: map[gpu.UUID]*api.GPUSpec{observetest.One: whole}}, node, use,
				Authority{Force: c.force, AllowReset: true},
			)
			if err := ProblemError(p.Problems, Remedies{Node: node, Command: "gpushare apply -f node.yaml"}); c.kind != "" || err != nil {
				if err == nil || err.Kind != c.kind || !strings.Contains(err.Message, c.says) {
					t.Errorf("it is refused with %+v, want %s with %q", err, c.kind, c.says)
				}
				users := ConflictingUsers(p.Problems, node, use)
				if c.kind == api.KindInUse &&
					(len(users) != 1 || users[0].PID != 42 || users[0].Command != "nvtop" || users[0].GPU != string(observetest.One) || users[0].Kept) {
					t.Errorf("its device users are %+v", users)
				}
				return
			}
			if len(p.Steps) == 0 {
				t.Error("nothing is planned")
			}
			var stops []string
			for _, s := range PlanProcessStops(p.Steps, node, use) {
				stops = append(stops, s.Text)
				if s.GPU != string(observetest.One) || s.Phase != step.RevokeAccess || s.Disruption != step.Running {
					t.Errorf("the step is %+v", s)
				}
			}
			if d := cmp.Diff(c.stops, stops); d != "" {
				t.Errorf("stops (-want +got):\n%s", d)
			}
		})
	}
}
