package attribution

import (
	"slices"

	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/mps"
)

// ServesMPS reports whether a process is a server of an MPS control daemon that gpushare manages. The list of servers
// is queried only at intervals; servers are children of the control daemon. The process name is not used: a tenant can
// choose any name.
func ServesMPS(m *mps.State, p procfs.Stat) bool {
	return m != nil && (slices.Contains(m.Servers, p.PID) || m.PID > 0 && p.PPID == m.PID)
}

// IsServingMPS is ServesMPS for a pid. A process that has exited serves nothing.
func IsServingMPS(m *mps.State, pid int) bool {
	if m == nil {
		return false
	}
	p, err := procfs.Read(pid)
	return err == nil && ServesMPS(m, p)
}
