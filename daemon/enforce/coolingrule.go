package enforce

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/health"
)

// TemperatureRule is what the temperature of its GPU means for a lease, as of the last pass: that it is paused, or why it is not; nil
// where no GPU is hot on which the spec would pause it.
func (en *Enforcer) TemperatureRule(id string) *api.Rule {
	rules := en.Cooling.rules.Load()
	if rules == nil {
		return nil
	}
	if r, ok := (*rules)[id]; ok {
		return &r
	}
	return nil
}

// publishRules makes known what the hot GPUs mean for their leases.
func (en *Enforcer) publishRules(hot []*hotGPU, cannot error) {
	rules := map[string]api.Rule{}
	for _, g := range hot {
		r := api.Rule{What: "temperature", Desired: fmt.Sprintf("paused until its GPU has %d °C: %s", g.Limit-health.ClearsBelow, g)}
		for _, l := range g.Never {
			r.Reason = l.Never
			rules[l.Lease] = r
		}
		for _, id := range g.Leases {
			r.Enforced, r.Reason = false, ""
			switch p := en.Cooling.paused[id]; {
			case cannot != nil:
				r.Reason = cannot.Error()
			case p != nil && p.err != nil:
				r.Reason = p.err.Error()
			default:
				r.Enforced = true
			}
			rules[id] = r
		}
	}
	en.Cooling.rules.Store(&rules)
}
