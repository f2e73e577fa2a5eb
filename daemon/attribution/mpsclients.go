package attribution

import (
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
)

// MPSClients counts the clients that the MPS control daemons of a node have, by their leases. A client that has exited since they
// were read does not count.
func (attr *Attribution) MPSClients(node *observe.Node) state.MPSClients {
	out := state.MPSClients{}
	for i := range node.GPUs {
		daemons := node.GPUs[i].ControlDaemons()
		if len(daemons) == 0 {
			continue
		}
		var clients []int
		for _, m := range daemons {
			clients = append(clients, m.Clients...)
		}
		out[node.GPUs[i].Identity.UUID] = attr.CountClients(clients)
	}
	return out
}

// CountClients counts clients by the lease that they are in; under "" those of no lease.
func (attr *Attribution) CountClients(pids []int) map[string]int {
	count := map[string]int{}
	leaseOf := attr.LeaseLookup(len(pids))
	for _, pid := range pids {
		if st, err := procfs.Read(pid); err != nil || st.Dead() {
			continue
		}
		id, _ := leaseOf(pid)
		count[id]++
	}
	return count
}
