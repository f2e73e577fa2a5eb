package daemon

import (
	"testing"

	"github.com/gpushare/gpushare/daemon/change"
	"github.com/gpushare/gpushare/daemon/planner"
)

// A kind of step that nothing plans any more is carried out all the same: a change that an earlier version left open has it.
func TestOldKindsAreCarriedOut(t *testing.T) {
	w := peopled(t)
	if _, ok := w.handlers(nil, nil)[planner.KindAllowMove].(change.MigrationPolicy); !ok {
		t.Errorf("nobody carries out %s", planner.KindAllowMove)
	}
}
