package status

import (
	"context"
	"strings"

	"github.com/gpushare/gpushare/daemon/state"
)

// checkQuiesce tells what of node.quiesce cannot be done here.
func (v *Viewer) checkQuiesce(ctx context.Context, want *state.Desired, warn func(name, message, hint string)) {
	if want.Spec == nil || len(want.Spec.Node.Quiesce) == 0 {
		return
	}
	if v.Services == nil {
		warn("quiesce", "the units of node.quiesce are not stopped around MIG changes: nothing here stops units, it takes systemd", "stop them by hand before such a change: "+strings.Join(want.Spec.Node.Quiesce, ", "))
		return
	}
	for _, unit := range want.Spec.Node.Quiesce {
		if _, err := v.Services.UnitActive(ctx, unit); err != nil {
			warn("quiesce", "node.quiesce names "+unit+", which cannot be seen: "+err.Error(), "'systemctl status "+unit+"' says more; correct the name or remove it")
		}
	}
}
