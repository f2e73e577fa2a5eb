package converge

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

// updateMPSConditions reports control daemons that do not run or do not answer.
func (cv *Converger) updateMPSConditions(want *state.Desired, node *observe.Node) {
	bad := map[string]api.Condition{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if want.Mode(id) != api.ModeMPS || !want.Enforcing() || g.MPS.Healthy() || g.MPS == nil && cv.State.Changing() != nil {
			continue
		}
		c := api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %d: MPS does not run", g.Identity.Index), Hint: "it is started again; 'gpushare mps list' shows why it ended"}
		if g.MPS != nil {
			c.Message = fmt.Sprintf("GPU %d: MPS is %s: %s", g.Identity.Index, g.MPS.Phase, g.MPS.Reason)
			if g.MPS.Phase == mps.Unresponsive {
				c.Hint = "it is not restarted, because a restart stops its clients: end them, then 'gpushare gpu retry'"
			}
		}
		bad[string(id)] = c
	}
	cv.Conditions.Replace("mps", bad)
}
