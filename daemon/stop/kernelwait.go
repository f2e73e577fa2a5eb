package stop

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/internal/procfs"
)

// describeWait says what a thread waits for in the kernel: in which call, of which file, on which mount.
func (h *Alive) describeWait(pid, tid int) {
	wait := procfs.ReadWait(pid, tid)
	h.Text += ": it waits in the kernel (state D"
	if wait.Function != "" {
		h.Text += ", " + wait.Function
	}
	h.Text += ")"
	h.Hint = fmt.Sprintf("'cat /proc/%d/task/%d/stack' shows where it hangs; in a driver often only a reboot helps", pid, tid)
	if wait.Call == "" {
		return
	}
	h.Text += " in " + wait.Call
	if wait.File == "" {
		return
	}
	h.Text += " of " + shown(wait.File)
	var on procfs.Mount
	_ = procfs.WalkMounts(tid, func(m procfs.Mount) { // Without mounts the process exits: the file alone is named.
		if m.Holds(wait.File) && len(m.Point) >= len(on.Point) {
			on = m
		}
	})
	if on.Type == "" {
		return
	}
	h.Text += fmt.Sprintf(", on %s at %s from %s", on.Type, shown(on.Point), shown(on.Source))
	if hasServer(on.Type) {
		h.Hint = fmt.Sprintf("end the requests to the server: 'umount -f %s', or start the server again", shown(on.Point))
	}
}

// hasServer reports whether a type of file systems asks a server of the network, which root mounts.
func hasServer(kind string) bool {
	return strings.HasPrefix(kind, "nfs") || slices.Contains([]string{"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "ocfs2", "smb3"}, kind)
}
