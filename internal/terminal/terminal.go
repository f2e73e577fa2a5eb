// Package terminal writes a notice, one line, to the terminals of users' processes. It never reads from
// them, never blocks, and acquires no controlling terminal.
package terminal

import (
	"fmt"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// maxLine is the longest line in characters.
const maxLine = 400

// Pseudo terminals have eight majors (Documentation/admin-guide/devices.txt). ssh, tmux and terminal windows use them. Other
// kinds are not written to: closing a serial line may wait for its modem.
const (
	firstMajor = 136
	lastMajor  = 143
)

// Notify writes the line once to every controlling terminal of the processes, and returns the number of terminals that
// accepted it. It skips a terminal that is not owner's (unless owner is root), whose owner ran `mesg n`, that is stopped
// (Ctrl-S), or whose process is in another mount namespace: its number then means another terminal.
func Notify(pids []int, owner int, text string) int {
	line := Line(text)
	ownMounts := hostMounts()
	seen := map[uint64]bool{}
	notified := 0
	for _, pid := range pids {
		s, err := procfs.Read(pid)
		if err != nil || s.TTY == 0 || seen[s.TTY] || mountsOf(pid) != ownMounts {
			continue
		}
		seen[s.TTY] = true
		if write(s.TTY, owner, line) == nil {
			notified++
		}
	}
	return notified
}

// Line is the text for a terminal: on a line of its own wherever the cursor is, without control characters.
func Line(text string) string {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return '\ufffd'
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd"))
	if runes := []rune(clean); len(runes) > maxLine {
		clean = string(runes[:maxLine-1]) + "…"
	}
	return "\r\n" + clean + "\r\n"
}

// write writes the line to one terminal. It does not block: a terminal that accepts nothing now is an error.
func write(device uint64, owner int, line string) error {
	major, minor := unix.Major(device), unix.Minor(device)
	if major < firstMajor || major > lastMajor {
		return fmt.Errorf("cannot write to terminal %d:%d: not a pseudo terminal", major, minor)
	}
	name := fmt.Sprintf("/dev/pts/%d", (major-firstMajor)<<8|minor)
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open "+name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat "+name, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != device:
		return fmt.Errorf("cannot write to %s: it is another terminal", name)
	case owner != 0 && int(st.Uid) != owner:
		return fmt.Errorf("cannot write to %s: it belongs to another user", name)
	case st.Mode&unix.S_IWGRP == 0:
		return fmt.Errorf("cannot write to %s: its owner refuses messages (mesg n)", name)
	}
	if _, err := unix.Write(fd, []byte(line)); err != nil {
		return os.NewSyscallError("write "+name, err)
	}
	return nil
}

// hostMounts is the mount namespace of the host, or that of this process where the host's cannot be read.
func hostMounts() string {
	if m := mountsOf(1); m != "" {
		return m
	}
	return mountsOf(os.Getpid())
}

// mountsOf is empty when the process has ended or may not be read.
func mountsOf(pid int) string {
	m, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return ""
	}
	return m
}
