package planner

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/mps"
)

// A GPU whose MPS is down or does not answer takes no lease, is restarted by the loop only when it is time and no client
// is disturbed, and does not stand in the way of another change.
func TestMPSThatIsDown(t *testing.T) {
	const id = gpu.UUID("GPU-1")
	now := time.Unix(1e9, 0)
	want := &state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}}, GPUs: map[gpu.UUID]*api.GPUSpec{id: {Mode: api.ModeMPS}}}
	set := &mps.Settings{GPU: id}
	client := []gpu.Process{{PID: 7, Kind: gpu.MPSProcess}}
	for _, c := range []struct {
		name                     string
		m                        *mps.State
		processes                []gpu.Process
		closed                   bool
		starts, inLoop, inChange int
	}{
		{"it runs", &mps.State{Phase: mps.Running, Settings: set}, client, false, 0, 0, 0},
		{"it was never started", nil, nil, true, 1, 1, 1},
		{"a greeting was missed", &mps.State{Phase: mps.Running, Settings: set, Reason: "no greeting"}, client, true, 0, 0, 0},
		{"it ended", &mps.State{Phase: mps.Restarting, Settings: set}, nil, true, 1, 1, 1},
		{"it ended a moment ago", &mps.State{Phase: mps.Restarting, Settings: set, Retry: now.Add(1)}, nil, true, 1, 0, 1},
		{"it failed", &mps.State{Phase: mps.Failed, Retry: now.Add(time.Minute)}, nil, true, 1, 0, 1},
		{"its servers have clients", &mps.State{Phase: mps.Failed, Settings: set, Leftovers: []int{12}}, client, true, 1, 1, 0},
		{"it does not answer", &mps.State{Phase: mps.Unresponsive, Settings: set, Reason: "no greeting"}, nil, true, 1, 1, 1},
		{"it does not answer and has clients", &mps.State{Phase: mps.Unresponsive, Settings: set, Reason: "no greeting"}, client, true, 1, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := &observe.Node{
				GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: id}, Processes: c.processes}, MPS: c.m}},
			}
			if closed := withoutMPS(want, node, everyInstance, nil); (len(closed) > 0) != c.closed {
				t.Errorf("closed: %+v", closed)
			}
			if _, starts := PlanMPS(want, node, nil, nil); len(starts) != c.starts {
				t.Errorf("planned %+v", starts)
			}
			if _, starts := PlanMPS(want, node, nil, nil); len(WithoutWaiting(starts, node, now)) != c.inLoop {
				t.Errorf("in the loop: %+v", starts)
			}
			if _, starts := PlanMPS(want, node, nil, nil); len(WithoutRestarts(starts, node)) != c.inChange {
				t.Errorf("in a change of something else: %+v", starts)
			}
		})
	}
	observing := *want
	observing.Spec = &api.Spec{}
	node := &observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: id}}}}}
	closed := withoutMPS(&observing, node, everyInstance, nil)
	if len(closed) != 0 {
		t.Errorf("a node that is only observed closes %v", closed)
	}
}

func everyInstance(gpu.UUID, *gpu.Instance) bool { return true }

// An instance that is not to be shared has no MPS, which is not why it is closed.
func TestInstancesThatAreNotSharedLackNoMPS(t *testing.T) {
	spec := &api.MIGSpec{Layout: api.LayoutOf("3g.20gb"), MPS: api.LayoutOf("3g.20gb")}
	want := &state.Desired{
		Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}},
		GPUs: map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeMIG, MIG: spec}},
	}
	shared := observetest.Instance(9, 0)
	split := observetest.Instance(9, 0)
	split.Compute = append(split.Compute, split.Compute[0])
	foreign := func(gpu.UUID, *gpu.Instance) bool { return false }
	behind := closing.Closures{{Where: closing.OnGPU(observetest.One), Kind: string(closing.Behind)}}
	for _, c := range []struct {
		name    string
		have    gpu.Instance
		managed ManagedInstance
		list    closing.Closures
		closed  int
	}{
		{"its own", shared, everyInstance, nil, 1},
		{"foreign", shared, foreign, nil, 0},
		{"split", split, everyInstance, nil, 0},
		{"on a GPU that is not as the spec says yet", shared, everyInstance, behind, 0},
	} {
		node := &observe.Node{GPUs: []observe.GPU{observetest.Device(true, c.have)}}
		if closed := withoutMPS(want, node, c.managed, c.list); len(closed) != c.closed {
			t.Errorf("%s: closed are %+v", c.name, closed)
		}
	}
}

// A GPU that has left its bus has no index: commands name it by its UUID.
func TestMPSArgumentsOfAGPUWithoutAnIndex(t *testing.T) {
	g := &observe.GPU{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-1", Index: -1}}}
	whole, inside := MPSArguments(
		g,
		mps.Whole("GPU-1"),
	), MPSArguments(
		g,
		mps.Device{GPU: "GPU-1", Instance: gpu.Placement{Start: 4, Size: 4}},
	)
	if whole != "GPU-1" || inside != "GPU-1:4" {
		t.Errorf("they are %q and %q", whole, inside)
	}
}
