package planner

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// RestoreGPU plans a recorded layout at the recorded placements.
func RestoreGPU(e *api.GPUSpec, g *observe.GPU, layout []gpu.Instance, use Usage) ([]step.Step, error) {
	if err := g.MIG.Missing.CanRead(); err != nil {
		return nil, fmt.Errorf("cannot plan MIG: %w", err)
	}
	users, _ := inUseBy(g, nil, use)
	mode, err := mig.PlanMode(g.MIG, true, users, mig.Options{})
	if err != nil {
		return nil, err
	}
	var r mig.Result
	if !g.MIG.Current && (g.Profiles == nil || g.ProfilesAssumed) {
		r = mig.RestoreAssumed(g.Profiles, layout)
	} else if r, err = mig.Restore(*g.Profiles, Present(e, g, use), mig.Record(*g.Profiles, layout), mig.Options{}); err != nil {
		return nil, err
	}
	r.Mode = mode
	if err := r.Check(g.MIG, mig.Options{}); err != nil {
		return nil, err
	}
	return r.Steps(g.Identity.UUID), nil
}
