package status

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/observe"
)

// checkHealth reports that the GPUs are in order, and what is not known of them. Conditions report their trouble.
func (v *Viewer) checkHealth(node *observe.Node, ok func(name, message string), warn func(name, message, hint string)) {
	inOrder, read := 0, 0
	for i := range node.GPUs {
		h := v.Managers.Health.Status(node.GPUs[i].Identity.UUID)
		if h.State == api.HealthOK && node.GPUs[i].Err == nil {
			inOrder++
		}
		if h.Readings != nil {
			read++
		}
	}
	if inOrder == len(node.GPUs) && inOrder > 0 {
		ok("health", fmt.Sprintf("no GPU has trouble; sensors are read of %d of %d", read, len(node.GPUs)))
	}
	if err := v.Managers.Health.LogError(); err != nil {
		warn(
			"health",
			err.Error(),
			"a program that causes an XID is known in a MIG instance of one lease only; gpushared needs /dev/kmsg: 'systemctl daemon-reload' and 'systemctl restart gpushared' let systemd open it",
		)
	}
}
