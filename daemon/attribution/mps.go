package attribution

import (
	"slices"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// ServesMPS reports whether a process is a server of one of these MPS control daemons, which gpushare manages. The list of
// servers is queried only at intervals; servers are children of the control daemon, and remain in its unit when it has ended. The
// process name is not used: a tenant can choose any name.
func ServesMPS(daemons []*mps.State, p procfs.Stat) bool {
	return slices.ContainsFunc(daemons, func(m *mps.State) bool {
		return slices.Contains(m.Servers, p.PID) || slices.Contains(m.Leftovers, p.PID) || m.PID > 0 && p.PPID == m.PID
	})
}

// IsServingMPS is ServesMPS for a pid. A process that has exited serves nothing.
func IsServingMPS(daemons []*mps.State, pid int) bool {
	if len(daemons) == 0 {
		return false
	}
	p, err := procfs.Read(pid)
	return err == nil && ServesMPS(daemons, p)
}
