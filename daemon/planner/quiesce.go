package planner

import (
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// The kinds of step that quiesce units. A stop in a change's record means that the unit ran before the change.
const (
	KindUnitStop  = "unit.stop"
	KindUnitStart = "unit.start"
)

// UnitArgs are the arguments of both.
type UnitArgs struct {
	Unit string `json:"unit"`
}

// QuiescePlan stops units before a change and starts them after it.
type QuiescePlan struct {
	Stop, Start []step.Step
	Warnings    []string
}

// NoServiceManager is the warning on a host without systemd.
const NoServiceManager = "node.quiesce: no unit is stopped for this change: stopping units needs systemd"

// UnitSteps are the steps that stop a unit and start it again.
func UnitSteps(unit string) (stop, start step.Step) {
	args := step.Must(UnitArgs{unit})
	stop = step.Step{
		Kind: KindUnitStop, Phase: step.RevokeAccess, Args: args, Undo: args, Text: "stop " + unit,
		Reason: "node.quiesce: it would block the change", Disruption: step.Idle,
	}
	start = step.Step{
		Kind: KindUnitStart, Phase: step.GrantAccess, Args: args, Text: "start " + unit + " again",
		Reason: "it ran before", Disruption: step.None,
	}
	return stop, start
}

// Partitioned are the GPUs whose MIG mode or instances the steps change.
func Partitioned(steps []step.Step) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	for i := range steps {
		if strings.HasPrefix(steps[i].Kind, "mig.") {
			out[gpu.UUID(steps[i].GPU)] = true
		}
	}
	return out
}

// UnitsOf are the units of the processes that have one of the GPUs, or one of its instances, open.
func UnitsOf(use Usage, gpus map[gpu.UUID]bool) map[string]bool {
	out := map[string]bool{}
	add := func(pids []int) {
		for _, pid := range pids {
			h := use.Process(nil, pid)
			out[h.Unit] = true
		}
	}
	for id := range gpus {
		add(use.OpenDevices.GPUs[id])
	}
	for at, pids := range use.OpenDevices.Instances {
		if gpus[at.GPU] {
			add(pids)
		}
	}
	return out
}
