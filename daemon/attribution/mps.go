package attribution

import (
	"slices"

	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/mps"
)

// ServesMPS tells whether a process is a server of an MPS control daemon of ours. The control daemon is asked for its
// servers only now and then; they are its children. Their name tells nothing: a tenant chooses what his is called.
func ServesMPS(m *mps.State, p procfs.Stat) bool {
	return m != nil && (slices.Contains(m.Servers, p.PID) || m.PID > 0 && p.PPID == m.PID)
}

// IsServingMPS is servesMPS for a process that is given by its pid. One that ended serves nobody.
func IsServingMPS(m *mps.State, pid int) bool {
	if m == nil {
		return false
	}
	p, err := procfs.Read(pid)
	return err == nil && ServesMPS(m, p)
}
