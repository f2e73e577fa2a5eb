package converge

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
)

// judgeRelease reports what still stands on a node that was given back.
func (cv *Converger) judgeRelease(want *state.Desired, node *observe.Node) {
	still := map[string]api.Condition{}
	if want.Released != nil && cv.State.Kept().ActiveRestrictions && cv.State.Changing() == nil {
		n, first, err := cv.Changes.StillStands(node)
		switch {
		case err != nil:
			still[""] = api.Condition{Message: "whether all was given back cannot be seen: " + err.Error()}
		case n > 0:
			still[""] = api.Condition{
				Message: fmt.Sprintf("not all was given back: %s (%d steps are left)", first, n),
				Hint:    "'gpushare unmanage --check' lists it; correct the cause and release again",
			}
		}
	}
	cv.Conditions.Replace(state.KindRelease, still)
}
