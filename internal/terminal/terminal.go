// Package terminal puts one line on the terminals of other people's processes, as wall(1) does. It reads nothing from
// them, waits for nothing, and takes no terminal for its own.
package terminal

import (
	"fmt"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/procfs"
)

// maxLine is where a line is cut: what is longer is no notice.
const maxLine = 400

// Pseudo terminals have eight majors (Documentation/admin-guide/devices.txt): what ssh, tmux and terminal windows give.
// No other kind is written to: closing a serial line may wait for its modem.
const (
	firstMajor = 136
	lastMajor  = 143
)

// Notify writes the line to every controlling terminal that the processes have, once to each, and gives the number of those
// that took it. A terminal is left alone when it is not owner's (unless that is root), when its owner said `mesg n`, when it
// is full (Ctrl-S), and when its process lives among other mounts than ours: the number then means another terminal.
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

// Line is the text as it is put on a terminal: on a line of its own whatever the cursor's place, with nothing in it that
// a terminal would obey.
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

// write puts the line on one terminal. It cannot block: a terminal that takes nothing now is an error.
func write(device uint64, owner int, line string) error {
	major, minor := unix.Major(device), unix.Minor(device)
	if major < firstMajor || major > lastMajor {
		return fmt.Errorf("cannot write to terminal %d:%d: it is no pseudo terminal", major, minor)
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
		return fmt.Errorf("cannot write to %s: it is not the terminal that was meant", name)
	case owner != 0 && int(st.Uid) != owner:
		return fmt.Errorf("cannot write to %s: it is another user's", name)
	case st.Mode&unix.S_IWGRP == 0:
		return fmt.Errorf("cannot write to %s: its owner wants no messages", name)
	}
	if _, err := unix.Write(fd, []byte(line)); err != nil {
		return os.NewSyscallError("write "+name, err)
	}
	return nil
}

// hostMounts names the mounts that ours are a copy of: the host's, or our own where those cannot be seen.
func hostMounts() string {
	if m := mountsOf(1); m != "" {
		return m
	}
	return mountsOf(os.Getpid())
}

// mountsOf is empty when the process is gone or is not ours to look at.
func mountsOf(pid int) string {
	m, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return ""
	}
	return m
}
