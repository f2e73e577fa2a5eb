package converge

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
)

// updateUnmanageConditions reports the restrictions that are still active on an unmanaged node.
func (cv *Converger) updateUnmanageConditions(want *state.Desired, node *observe.Node) {
	remaining := map[string]api.Condition{}
	if want.Unmanaged != nil && cv.State.Stored().ActiveRestrictions && cv.State.Changing() == nil {
		n, first, err := cv.Unmanage.RemainingSteps(node)
		switch {
		case err != nil:
			remaining[""] = api.Condition{Message: "cannot read whether the node is unmanaged completely: " + err.Error()}
		case n > 0:
			remaining[""] = api.Condition{
				Message: fmt.Sprintf("the node is not unmanaged completely: %s (%d steps are left)", first, n),
				Hint:    "'gpushare unmanage --check' lists it; correct the cause, then 'gpushare unmanage'",
			}
		}
	}
	cv.Conditions.Replace(state.KindUnmanage, remaining)
}
