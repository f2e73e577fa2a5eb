package health

import (
	"strconv"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
)

// policyOf is what the spec says of a GPU: what its entry has, then what the node has.
func policyOf(want *state.Desired, id gpu.UUID) rules.Policy {
	p := rules.Policy{Do: map[uint64]rules.Do{}}
	add := func(h *api.HealthSpec) {
		if h == nil {
			return
		}
		if t := h.Temperature; t != nil {
			if t.Warn != nil {
				warn := int(*t.Warn)
				p.Warn = &warn
			}
			if t.Do != "" {
				p.PauseLow = t.Do == api.TemperaturePauseLow
			}
		}
		for number, do := range h.XID {
			if n, err := strconv.ParseUint(number, 10, 64); err == nil { // Validate has refused another text.
				p.Do[n] = rules.Do(do)
			}
		}
	}
	if want.Spec != nil {
		add(want.Spec.Node.Health)
	}
	if e := want.GPUs[id]; e != nil {
		add(e.Health)
	}
	return p
}
