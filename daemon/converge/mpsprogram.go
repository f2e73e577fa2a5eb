package converge

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
)

// updateMPSProgramCondition reports an MPS control program that is not the driver's, or of which little is known. There is one on
// the node.
func (cv *Converger) updateMPSProgramCondition(want *state.Desired, node *observe.Node) {
	cv.Conditions.Replace("mps-program", mpsProgramConditions(want, node))
}

func mpsProgramConditions(want *state.Desired, node *observe.Node) map[string]api.Condition {
	conditions := map[string]api.Condition{}
	for i := range node.GPUs {
		st := node.GPUs[i].MPS
		if st == nil || want.Mode(node.GPUs[i].Identity.UUID) != api.ModeMPS || !want.Enforcing() || st.Version == "" {
			continue
		}
		if why := st.Program.Differs(node.Driver.DriverVersion, node.Driver.CUDAVersion); why != "" {
			conditions["differs"] = api.Condition{Message: why, Hint: "install the MPS package of the driver, then 'gpushare gpu retry'"}
		}
		if _, unknown := st.Program.Abilities(); unknown != "" {
			conditions["unknown"] = api.Condition{Message: unknown}
		}
	}
	return conditions
}
