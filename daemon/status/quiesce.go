package status

import (
	"context"
	"strings"

	"github.com/gpushare/gpushare/daemon/state"
)

// checkQuiesce reports the units of node.quiesce that cannot be stopped here.
func (v *Viewer) checkQuiesce(ctx context.Context, want *state.Desired, warn func(name, message, hint string)) {
	if want.Spec == nil || len(want.Spec.Node.Quiesce) == 0 {
		return
	}
	if v.Services == nil {
		warn(
			"quiesce", "the units of node.quiesce are not stopped around MIG changes: this needs systemd",
			"before such a change stop them by hand: "+strings.Join(want.Spec.Node.Quiesce, ", "),
		)
		return
	}
	for _, unit := range want.Spec.Node.Quiesce {
		if _, err := v.Services.UnitActive(ctx, unit); err != nil {
			warn(
				"quiesce", "cannot read the state of "+unit+", which is in node.quiesce: "+err.Error(),
				"'systemctl status "+unit+"' says more; correct the name or remove it",
			)
		}
	}
}
