package planner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
)

// Each shared instance has a control daemon, which is stopped before its instance is destroyed and started when one was created.
func TestPlanMPSOfInstances(t *testing.T) {
	const id, uuid = gpu.UUID("GPU-1"), gpu.UUID("MIG-1")
	at := gpu.Placement{Start: 4, Size: 4}
	on := &api.MIGSpec{Layout: api.LayoutOf("3g.20gb"), MPS: api.LayoutOf("3g.20gb")}
	off := &api.MIGSpec{Layout: api.LayoutOf("3g.20gb")}
	set := &mps.Settings{GPU: id, Instance: at, MIG: uuid}
	running := func() *mps.State { return &mps.State{GPU: id, Instance: at, Phase: mps.Running, PID: 7, Settings: set} }
	instance := gpu.Instance{ID: 2, ProfileID: 9, Placement: at, Compute: []gpu.ComputeInstance{{UUID: uuid}}}
	args := step.Must(mig.InstanceArgs{Placed: mig.Placed{Name: "3g.20gb", ProfileID: 9, Placement: at}})
	create := step.Step{Kind: mig.KindCreate, GPU: string(id), Args: args}
	destroy := step.Step{Kind: mig.KindDestroy, GPU: string(id), Args: args}
	gi, other := uint32(2), uint32(3)
	for _, c := range []struct {
		name     string
		want     *api.MIGSpec
		m        *mps.State
		change   func(in *gpu.Instance)
		missing  bool // the instance does not exist
		foreign  bool
		hardware []step.Step
		steps    []string
	}{
		{name: "new", want: on, steps: []string{"start none"}},
		{name: "as desired", want: on, m: running()},
		{name: "the key was removed, with a client", want: off, m: running(), steps: []string{"stop running"}},
		{name: "the MIG device is another", want: on, m: running(), change: func(in *gpu.Instance) { in.Compute[0].UUID = "MIG-2" }, steps: []string{"start running"}},
		{name: "it has several compute instances", want: on, change: func(in *gpu.Instance) { in.Compute = append(in.Compute, gpu.ComputeInstance{UUID: "MIG-2"}) }},
		{name: "it is not managed by gpushare", want: on, foreign: true},
		{name: "it disappeared", want: on, m: running(), missing: true, steps: []string{"stop idle"}},
		{name: "it is created", want: on, missing: true, hardware: []step.Step{create}, steps: []string{"start none"}},
		{name: "it is destroyed", want: on, m: running(), hardware: []step.Step{destroy}, steps: []string{"stop running"}},
		{name: "it is created again", want: on, m: running(), hardware: []step.Step{destroy, create}, steps: []string{"stop running", "start none"}},
		{name: "it disappeared and is created again", want: on, m: running(), missing: true, hardware: []step.Step{create}, steps: []string{"stop idle", "start none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := instance
			in.Compute = append([]gpu.ComputeInstance(nil), instance.Compute...)
			if c.change != nil {
				c.change(&in)
			}
			g := observe.GPU{
				Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: id}, Instances: []gpu.Instance{in}, Processes: []gpu.Process{
					{PID: 70, Kind: gpu.MPSProcess, GI: &gi}, {PID: 71, Kind: gpu.MPSProcess, GI: &other},
				}},
				Profiles: &gpu.Profiles{GI: []gpu.Profile{{ID: 9, Name: "3g.20gb"}}},
			}
			if c.missing {
				g.Instances = nil
			}
			if c.m != nil {
				g.InstanceMPS = []*mps.State{c.m}
			}
			want := &state.Desired{
				Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}},
				GPUs: map[gpu.UUID]*api.GPUSpec{id: {Mode: api.ModeMIG, MIG: c.want}},
			}
			stop, start := PlanMPS(
				want, &observe.Node{GPUs: []observe.GPU{g}}, c.hardware, func(gpu.UUID, *gpu.Instance) bool { return !c.foreign },
			)
			var got []string
			for _, s := range append(stop, start...) {
				kind := map[string]string{mps.KindStart: "start", mps.KindStop: "stop"}[s.Kind]
				got = append(got, kind+" "+string(s.Disruption))
				if d, ok := mps.DeviceOf(&s); !ok || d != (mps.Device{GPU: id, Instance: at}) {
					t.Errorf("the step is about %v", d)
				}
				if s.Disruption == step.Running && !cmp.Equal(step.Texts(s.Disturbs), []string{"pid 70"}) {
					t.Errorf("it disturbs %v", s.Disturbs)
				}
			}
			if d := cmp.Diff(c.steps, got); d != "" {
				t.Errorf("steps (-want +got):\n%s", d)
			}
		})
	}
}
