package attribution

import (
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
)

// MPSClients counts the clients that the MPS control daemons of a node have, by their leases. A client that has exited since they
// were read does not count.
func (attr *Attribution) MPSClients(node *observe.Node) state.MPSClients {
	out := state.MPSClients{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.MPS == nil {
			continue
		}
		leaseOf := attr.LeaseLookup(len(g.MPS.Clients))
		count := map[string]int{}
		for _, pid := range g.MPS.Clients {
			if st, err := procfs.Read(pid); err != nil || st.Dead() {
				continue
			}
			id, _ := leaseOf(pid)
			count[id]++
		}
		out[g.Identity.UUID] = count
	}
	return out
}
