package stop

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// kernelWait is what a thread waits for in the kernel.
type kernelWait struct {
	procfs.Wait
	on procfs.Mount // of its file; without a type if it is not known
}

func readKernelWait(pid, tid int) kernelWait {
	w := kernelWait{Wait: procfs.ReadWait(pid, tid)}
	if w.File == "" {
		return w
	}
	_ = procfs.WalkMounts(tid, func(m procfs.Mount) { // Without mounts the thread exits: the file alone is named.
		if m.Has(w.File) && len(m.Point) >= len(w.on.Point) {
			w.on = m
		}
	})
	return w
}

// String says in which call it waits, of which file, on which mount; empty: that is not known.
func (w kernelWait) String() string {
	text := w.Call
	if text == "" || w.File == "" {
		return text
	}
	text += " of " + shown(w.File)
	if w.on.Type != "" {
		text += fmt.Sprintf(", on %s at %s from %s", w.on.Type, shown(w.on.Point), shown(w.on.Source))
	}
	return text
}

// describeWait describes a process by what one of its threads waits for.
func (h *Alive) describeWait(pid, tid int) {
	wait := readKernelWait(pid, tid)
	h.Text += ": it waits in the kernel (state D"
	if wait.Function != "" {
		h.Text += ", " + wait.Function
	}
	h.Text += ")"
	if call := wait.String(); call != "" {
		h.Text += " in " + call
	}
	h.Hint = fmt.Sprintf("'cat /proc/%d/task/%d/stack' shows where it hangs; in a driver often only a reboot helps", pid, tid)
	if hasServer(wait.on.Type) {
		h.Hint = fmt.Sprintf("end the requests to the server: 'umount -f %s', or start the server again", shown(wait.on.Point))
	}
}

// hasServer reports whether a type of file systems asks a server of the network, which root mounts.
func hasServer(kind string) bool {
	return strings.HasPrefix(kind, "nfs") ||
		slices.Contains([]string{"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "ocfs2", "smb3"}, kind)
}

// WaitOf says what a process waits for that does not get on: "chdir of /home/alice, on nfs4 at /home from server:/home". Empty: not in
// a call that is known.
func WaitOf(pid int) string {
	threads, err := procfs.Threads(pid)
	if err != nil {
		return ""
	}
	for _, t := range threads {
		if t.State == 'D' || t.State == 'S' {
			if wait := readKernelWait(pid, t.TID); wait.File != "" {
				return wait.String()
			}
		}
	}
	return ""
}
