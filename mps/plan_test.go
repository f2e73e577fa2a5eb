package mps

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

func TestPlan(t *testing.T) {
	set := Settings{GPU: gpuA}
	capped := Settings{GPU: gpuA, Threads: 30}
	roomy := Settings{GPU: gpuA, Memory: 2 << 30}
	deny := Settings{GPU: gpuA, DenyBypass: true}
	running := func(s *Settings, change func(*State)) *State {
		st := &State{GPU: gpuA, Phase: Running, PID: 10, Settings: s}
		if change != nil {
			change(st)
		}
		return st
	}
	client := []gpu.Process{{PID: 7, Kind: gpu.MPSProcess}, {PID: 8, Kind: gpu.ComputeProcess}}
	type planned struct {
		Kind, Text string
		Phase      step.Phase
		Disruption step.Disruption
		Disturbs   []string
	}
	tests := []struct {
		name string
		want *Settings
		o    Observed
		plan *planned
	}{
		{"nothing", nil, Observed{}, nil},
		{"new", &set, Observed{}, &planned{KindStart, "start MPS", step.GrantAccess, step.None, nil}},
		{
			"new and deny",
			&deny,
			Observed{},
			&planned{KindStart, "start MPS and set the compute mode to exclusive-process", step.GrantAccess, step.None, nil},
		},
		{"as desired", &set, Observed{State: running(&set, nil), Processes: client}, nil},
		{
			"a greeting was missed",
			&set,
			Observed{State: running(&set, func(s *State) { s.MissedGreetings, s.Reason = 1, "no greeting" })},
			nil,
		},
		{
			"unresponsive",
			&set,
			Observed{
				State:     running(&set, func(s *State) { s.Phase, s.MissedGreetings, s.Reason = Unresponsive, 3, "no greeting" }),
				Processes: client,
			},
			&planned{KindStart, "restart MPS", step.GrantAccess, step.Running, []string{"pid 7"}},
		},
		{
			"unresponsive without clients",
			&set,
			Observed{State: running(&set, func(s *State) { s.Phase, s.MissedGreetings, s.Reason = Unresponsive, 3, "no greeting" })},
			&planned{KindStart, "restart MPS", step.GrantAccess, step.Idle, nil},
		},
		{
			"the compute mode was changed",
			&deny,
			Observed{State: running(&deny, nil), ComputeMode: gpu.ComputeDefault, Processes: client},
			&planned{
				KindStart,
				"set compute mode exclusive-process: contexts that are opened from now on",
				step.GrantAccess,
				step.None,
				nil,
			},
		},
		{"the compute mode is as desired", &deny, Observed{State: running(&deny, nil), ComputeMode: gpu.ComputeExclusiveProcess}, nil},
		{"the compute mode is not known", &deny, Observed{State: running(&deny, nil)}, nil},
		{"a mode that gpushare did not set", &set, Observed{State: running(&set, nil), ComputeMode: gpu.ComputeExclusiveProcess}, nil},
		{
			"only the former mode is left",
			nil,
			Observed{State: &State{GPU: gpuA, Phase: Stopped}, ComputeMode: gpu.ComputeExclusiveProcess},
			&planned{KindStop, "stop MPS", step.RevokeAccess, step.Idle, nil},
		},
		{"a server has a fault", &set, Observed{State: running(&set, func(s *State) { s.Reason = "fault" }), Processes: client}, nil},
		{"starting", &set, Observed{State: running(&set, func(s *State) { s.Phase, s.MissedGreetings = Starting, 1 })}, nil},
		{
			"drifted",
			&capped,
			Observed{State: running(&capped, func(s *State) { s.Reason, s.Drift = "drift", true }), Processes: client},
			&planned{KindStart, "set the MPS limits again", step.GrantAccess, step.None, nil},
		},
		{
			"other threads, in use",
			&capped,
			Observed{State: running(&set, func(s *State) { s.Clients = []int{9, 7} })},
			&planned{KindStart, "set threads of MPS clients 100% → 30%: new clients", step.GrantAccess, step.None, nil},
		},
		{
			"other threads, unresponsive",
			&capped,
			Observed{State: running(&set, func(s *State) { s.Phase, s.Clients = Unresponsive, []int{7} })},
			&planned{KindStart, "restart MPS", step.GrantAccess, step.Running, []string{"pid 7"}},
		},
		{
			"other memory, in use",
			&roomy,
			Observed{State: running(&set, func(s *State) { s.Clients = []int{9, 7} })},
			&planned{
				KindStart,
				"set memory limit of MPS clients none → 2048 MiB: new clients; all at the latest when the 2 that run have ended, because a server may refuse it until then",
				step.GrantAccess,
				step.None,
				nil,
			},
		},
		{
			"other memory, idle",
			&set,
			Observed{State: running(&roomy, nil)},
			&planned{KindStart, "set memory limit of MPS clients 2048 MiB → none: new clients", step.GrantAccess, step.None, nil},
		},
		{
			"changed to deny, in use",
			&deny,
			Observed{State: running(&set, nil), Processes: client},
			&planned{
				KindStart,
				"set compute mode exclusive-process: contexts that are opened from now on",
				step.GrantAccess,
				step.None,
				nil,
			},
		},
		{
			"changed to report, in use",
			&set,
			Observed{State: running(&deny, nil), Processes: client},
			&planned{KindStart, "set compute mode from before MPS: contexts that are opened from now on", step.GrantAccess, step.None, nil},
		},
		{
			"limits that a server refuses",
			&capped,
			Observed{State: running(&capped, func(s *State) { s.Pending = "server 5" }), Processes: client},
			nil,
		},
		{
			"failed",
			&set,
			Observed{State: running(&set, func(s *State) { s.Phase, s.PID = Failed, 0 })},
			&planned{KindStart, "start MPS", step.GrantAccess, step.None, nil},
		},
		{
			"failed with a leftover server in use",
			&set,
			Observed{State: running(&set, func(s *State) { s.Phase, s.Leftovers = Failed, []int{12} }), Processes: client},
			&planned{KindStart, "start MPS", step.GrantAccess, step.Running, []string{"pid 7"}},
		},
		{
			"failed with an idle leftover server",
			&set,
			Observed{State: running(&set, func(s *State) { s.Phase, s.Leftovers = Failed, []int{12} })},
			&planned{KindStart, "start MPS", step.GrantAccess, step.Idle, nil},
		},
		{
			"not managed by gpushare",
			&set,
			Observed{State: running(nil, nil), Processes: client},
			&planned{KindStart, "restart MPS", step.GrantAccess, step.Running, []string{"pid 7"}},
		},
		{
			"not desired, in use",
			nil,
			Observed{State: running(&set, nil), Processes: client},
			&planned{KindStop, "stop MPS", step.RevokeAccess, step.Running, []string{"pid 7"}},
		},
		{"not desired, idle", nil, Observed{State: running(&set, nil)}, &planned{KindStop, "stop MPS", step.RevokeAccess, step.Idle, nil}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			desired := map[Device]Settings{}
			if test.want != nil {
				desired[deviceA] = *test.want
			}
			steps := Plan(desired, map[Device]Observed{deviceA: test.o})
			if test.plan == nil {
				if len(steps) != 0 {
					t.Errorf("planned %+v, want nothing", steps)
				}
				return
			}
			if len(steps) != 1 {
				t.Fatalf("planned %+v, want one step", steps)
			}
			s := steps[0]
			got := planned{s.Kind, s.Text, s.Phase, s.Disruption, step.Texts(s.Disturbs)}
			if diff := cmp.Diff(*test.plan, got); diff != "" {
				t.Errorf("step (-want +got):\n%s", diff)
			}
			if s.Reason == "" || s.GPU != string(gpuA) {
				t.Errorf("step %+v: no reason or no GPU", s)
			}
		})
	}
}

func TestPlanIsInOrder(t *testing.T) {
	desired, observed := map[Device]Settings{}, map[Device]Observed{}
	for _, id := range []gpu.UUID{"GPU-cccccccc-1", "GPU-aaaaaaaa-1"} {
		desired[Whole(id)] = Settings{GPU: id}
	}
	observed[Whole("GPU-bbbbbbbb-1")] = Observed{State: &State{GPU: "GPU-bbbbbbbb-1", Phase: Running}}
	var got []string
	for _, s := range Plan(desired, observed) {
		got = append(got, s.GPU)
	}
	if want := []string{"GPU-aaaaaaaa-1", "GPU-bbbbbbbb-1", "GPU-cccccccc-1"}; !cmp.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}
