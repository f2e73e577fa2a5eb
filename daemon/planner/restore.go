package planner

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// RestoreGPU plans a recorded layout at the recorded placements.
func RestoreGPU(e *api.GPUSpec, g *observe.GPU, layout []gpu.Instance, use Usage) ([]step.Step, error) {
	users, _ := inUseBy(g, nil, use)
	mode, err := mig.PlanMode(g.MIG, true, users, mig.Options{})
	if err != nil {
		return nil, err
	}
	r, err := mig.Restore(*g.Profiles, Present(e, g, use), mig.Record(*g.Profiles, layout), mig.Options{})
	if err != nil {
		return nil, err
	}
	r.Mode = mode
	return r.Steps(g.Identity.UUID), nil
}
