package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Confinement is what confines a process beyond its user. A detached program is no descendant of its caller and inherits
// nothing of this, so it is not started for a caller who would lose some of it.
type Confinement struct {
	// Namespaces are the namespaces by their name in /proc/PID/ns. One that cannot be read is missing.
	Namespaces map[string]string `json:"namespaces"`
	Root       string            `json:"root"` // device and inode of the root directory
	NoNewPrivs bool              `json:"no_new_privs,omitempty"`
	Filters    int               `json:"filters,omitempty"` // seccomp filters
	Bounding   uint64            `json:"bounding"`          // the capability bounding set
	Label      string            `json:"label,omitempty"`   // of AppArmor, SELinux or Smack
}

// namespaceNames are the names in /proc/PID/ns with what they are called. Those for children differ from the process's own
// between unshare(2) and fork(2).
func namespaceNames() map[string]string {
	return map[string]string{
		"cgroup": "cgroup namespace", "ipc": "IPC namespace", "mnt": "mount namespace", "net": "network namespace",
		"pid": "pid namespace", "pid_for_children": "pid namespace of its children", "time": "time namespace",
		"time_for_children": "time namespace of its children", "user": "user namespace", "uts": "UTS namespace",
	}
}

// confinementOf reads the confinement of a process: its pid, or "self".
func confinementOf(pid string) (Confinement, error) {
	c := Confinement{Namespaces: map[string]string{}}
	dir := filepath.Join("/proc", pid)
	for name := range namespaceNames() {
		link, err := os.Readlink(filepath.Join(dir, "ns", name))
		if err == nil {
			c.Namespaces[name] = link
		} else if !errors.Is(err, os.ErrNotExist) {
			return c, err
		}
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, filepath.Join(dir, "root"), unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
		return c, os.NewSyscallError("statx", err)
	}
	c.Root = fmt.Sprintf("%d:%d:%d", st.Dev_major, st.Dev_minor, st.Ino)
	if err := c.readStatus(pid); err != nil {
		return c, err
	}
	label, err := boundedread.Trusted(filepath.Join(dir, "attr/current"), boundedread.Value)
	// EINVAL: no security module has labels.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, os.ErrNotExist) {
		return c, err
	}
	c.Label = strings.TrimRight(string(label), "\x00\n")
	return c, nil
}

// readStatus reads /proc/PID/status (proc_pid_status(5)).
func (c *Confinement) readStatus(pid string) error {
	b, err := boundedread.Trusted(filepath.Join("/proc", pid, "status"), boundedread.Status)
	if err != nil {
		return err
	}
	return c.parseStatus(string(b))
}

func (c *Confinement) parseStatus(status string) (err error) {
	fields := map[string]string{}
	for line := range strings.Lines(status) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	c.NoNewPrivs = fields["NoNewPrivs"] == "1"
	if c.Bounding, err = strconv.ParseUint(fields["CapBnd"], 16, 64); err != nil {
		return fmt.Errorf("cannot read its capability bounding set: %w", err)
	}
	if mode := fields["Seccomp"]; mode != "" && mode != "0" {
		c.Filters = 1 // Kernels before 5.9 do not report the number.
		if n, err := strconv.Atoi(fields["Seccomp_filters"]); err == nil {
			c.Filters = n
		}
	}
	return nil
}

// lost names what confines the caller, and would not confine a program that this process (self) starts. What every process
// of the host has, as its first one does, is not lost: in a container that may be a seccomp filter.
func (c *Confinement) lost(self, first *Confinement) (names []string) {
	for name, text := range namespaceNames() {
		if c.Namespaces[name] != self.Namespaces[name] {
			names = append(names, text)
		}
	}
	if c.Root != self.Root {
		names = append(names, "root directory")
	}
	if c.Filters > first.Filters {
		names = append(names, "seccomp filter")
	}
	if c.NoNewPrivs && !first.NoNewPrivs {
		// The attribute could be passed on, but a Landlock domain comes with it, which no file shows.
		names = append(names, "no_new_privs, and a Landlock sandbox if it has one")
	}
	if c.Label != self.Label && confines(c.Label) {
		names = append(names, "security label "+c.Label)
	}
	if self.Bounding&^c.Bounding != 0 {
		names = append(names, "capability bounding set")
	}
	slices.Sort(names)
	return names
}

// confines reports whether a security label restricts a process.
func confines(label string) bool {
	if kind := strings.Split(label, ":"); len(kind) >= 3 { // user:role:type:level, of SELinux
		return kind[2] != "unconfined_t"
	}
	return label != "" && label != "unconfined" && label != "_" // AppArmor, Smack
}

// check returns why a program is not started for a caller with this confinement. The caller has locked its thread.
func (c *Confinement) check(path string) *Failure {
	// The bounding set is that of a thread, and this one executes the program.
	self, err := confinementOf("thread-self")
	if err != nil {
		return &Failure{Code: ExitCannot, Message: fmt.Sprintf("cannot start %s: what confines gpushare-start is not known: %v", path, err)}
	}
	var first Confinement
	_ = first.readStatus("1") // If it is hidden, it is taken as not confined.
	if names := c.lost(&self, &first); len(names) > 0 {
		return &Failure{
			Code:    ExitCannot,
			Message: fmt.Sprintf("cannot start %s detached: what confines the caller would be lost: %s", path, strings.Join(names, ", ")),
			Hint:    "run it without --detach, for example below nohup or in tmux",
		}
	}
	return nil
}

// limitCapabilities takes the capability bounding set of the caller as far as this process may.
func (c *Confinement) limitCapabilities() {
	for n := uintptr(0); n < 64; n++ {
		if c.Bounding&(1<<n) == 0 {
			_ = unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0) // check reads what remains.
		}
	}
}
