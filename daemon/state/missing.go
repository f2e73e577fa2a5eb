package state

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/observe"
)

// MissingReason is why a GPU that is missing has no other state, and is not changed.
const MissingReason = "the driver does not find it"

// Missing are the managed GPUs that the driver does not find. A change leaves them as they are.
func Missing(want *Desired, node *observe.Node) []api.HeldGPU {
	var out []api.HeldGPU
	for _, id := range node.Missing {
		if want.Manages(id.UUID) {
			out = append(out, api.HeldGPU{GPU: string(id.UUID), Index: id.Index, Reason: MissingReason, Command: "gpushare config reload"})
		}
	}
	return out
}
