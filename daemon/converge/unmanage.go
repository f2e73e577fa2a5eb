package converge

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
)

// updateUnmanageConditions reports what still stands on a node that was given back.
func (cv *Converger) updateUnmanageConditions(want *state.Desired, node *observe.Node) {
	remaining := map[string]api.Condition{}
	if want.Unmanaged != nil && cv.State.Stored().ActiveRestrictions && cv.State.Changing() == nil {
		n, first, err := cv.Changes.RemainingSteps(node)
		switch {
		case err != nil:
			remaining[""] = api.Condition{Message: "whether all was given back cannot be seen: " + err.Error()}
		case n > 0:
			remaining[""] = api.Condition{
				Message: fmt.Sprintf("not all was given back: %s (%d steps are left)", first, n),
				Hint:    "'gpushare unmanage --check' lists it; correct the cause and unmanage again",
			}
		}
	}
	cv.Conditions.Replace(state.KindUnmanage, remaining)
}
