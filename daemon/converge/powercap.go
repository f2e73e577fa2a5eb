package converge

import (
	"context"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/power"
)

// powerCaps keeps the power limits of GPUs.
type powerCaps interface {
	Plan(ctx context.Context, targets []power.Target, fresh bool) power.Plan
	Converged(targets []power.Target, p power.Plan)
	InForce(id gpu.UUID) bool
	Unmet() map[gpu.UUID]string
	Forget(steps []step.Step)
}

// reportPower records which caps are in force after a pass, and reports those that were changed from outside and corrected.
func (cv *Converger) reportPower(targets []power.Target, p power.Plan) {
	cv.Power.Converged(targets, p)
	for i := range targets {
		if text := p.Changed[targets[i].GPU]; text != "" && cv.Power.InForce(targets[i].GPU) {
			cv.reportCorrected("", "", text)
		}
	}
}

// updatePowerConditions reports the caps that are not in force.
func (cv *Converger) updatePowerConditions(want *state.Desired) {
	out := map[string]api.Condition{}
	if want.Enforcing() {
		for id, why := range cv.Power.Unmet() {
			out[string(id)] = api.Condition{
				GPU:     string(id),
				Message: "power_cap is not in force: " + why,
				Hint:    "it is tried again; see the journal of gpushared",
			}
		}
	}
	cv.Conditions.Replace("power", out)
}
