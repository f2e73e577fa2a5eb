package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoProcess means that the process is not there any more, or that its pid is another process now.
var ErrNoProcess = errors.New("no such process")

// Stat is what /proc/PID/stat says, as far as we need it.
type Stat struct {
	PID     int
	PPID    int
	Session int    // the pid of the session's leader, 0 for kernel threads
	TTY     uint64 // the device number of its controlling terminal, as unix.Mkdev makes it; 0 without one
	State   byte   // of the first thread: 'R', 'S', 'D', 'T', 'Z', 'X', … as in proc_pid_stat(5)
	Threads int    // how many there are, a first one that has ended included while others live
	Start   uint64 // start time in clock ticks since boot, field 22
	Name    string // the command's name, at most 15 bytes
}

// Dead tells whether the process has ended and waits only to be reaped. A first thread that has ended does not mean that: the
// others live on, for a moment while a process ends and for ever when the program means it. Only the last one's end can be
// reaped.
func (s Stat) Dead() bool {
	return s.State == 'Z' && s.Threads <= 1 || s.State == 'X' || s.State == 'x'
}

// Read reads the process's state. ErrNoProcess when there is no such process.
func Read(pid int) (Stat, error) {
	b, err := readFile(pid, "stat")
	if err != nil {
		return Stat{}, err
	}
	s, err := parseStat(b)
	if err != nil {
		return Stat{}, fmt.Errorf("cannot read the state of process %d: %w", pid, err)
	}
	return s, nil
}

// Start tells when the process started, in clock ticks since boot. ErrNoProcess when there is no such process.
func Start(pid int) (uint64, error) {
	s, err := Read(pid)
	return s.Start, err
}

// Alive tells whether the process with this pid and start time still runs. One that waits to be reaped does not.
func Alive(pid int, start uint64) bool {
	s, err := Read(pid)
	return err == nil && s.Start == start && !s.Dead()
}

// Command is the process's command line with its arguments joined by spaces, or its name in brackets when it has none
// (kernel threads, zombies), or empty when it is gone.
func Command(pid int) string {
	if b, err := readFile(pid, "cmdline"); err == nil {
		if line := strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " ")); line != "" {
			return line
		}
	}
	s, err := Read(pid)
	if err != nil {
		return ""
	}
	return "[" + s.Name + "]"
}

// Name is the process's short name, as `ps -o comm` shows it, or empty when it is gone.
func Name(pid int) string {
	s, err := Read(pid)
	if err != nil {
		return ""
	}
	return s.Name
}

// UID is the process's real user id.
func UID(pid int) (uint32, error) { return user(pid, 0) }

// EUID is the process's effective user id: whose rights it has, and what it tells others on a socket.
func EUID(pid int) (uint32, error) { return user(pid, 1) }

// user reads one of the real, effective, saved and file system's user ids.
func user(pid, which int) (uint32, error) {
	b, err := readFile(pid, "status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			f := strings.Fields(rest)
			if len(f) <= which {
				break
			}
			uid, err := strconv.ParseUint(f[which], 10, 32)
			if err != nil {
				break
			}
			return uint32(uid), nil
		}
	}
	return 0, fmt.Errorf("cannot read the user of process %d: its status has no Uid line", pid)
}

// UIDs are all the user ids of a process: real, effective, saved and of the file system, in this order.
func UIDs(pid int) ([]int, error) {
	b, err := readFile(pid, "status")
	if err != nil {
		return nil, err
	}
	var ids []int
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "Uid:")
		for _, f := range strings.Fields(rest) {
			uid, err := strconv.ParseUint(f, 10, 32)
			if !ok || err != nil {
				break
			}
			ids = append(ids, int(uid))
		}
		if ok && len(ids) == 4 {
			return ids, nil
		}
		ids = nil
	}
	return nil, fmt.Errorf("cannot read the users of process %d: its status has no Uid line of four", pid)
}

// PIDIndex lists all processes that can be seen, in ascending order.
func PIDs() ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if n[0] < '1' || n[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// All reads every process that can be seen. One that ends meanwhile is left out.
func All() ([]Stat, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	all := make([]Stat, 0, len(pids))
	for _, pid := range pids {
		if s, err := Read(pid); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

func readFile(pid int, name string) ([]byte, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
	// A process that ends between open and read gives ESRCH.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of process %d: %w", name, pid, err)
	}
	return b, nil
}

// parseStat reads the line of /proc/PID/stat. The name stands in parentheses and may itself hold spaces and
// parentheses, so that only the last one closes it.
func parseStat(b []byte) (Stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return Stat{}, errors.New("the stat line has no name in parentheses")
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	if err != nil {
		return Stat{}, errors.New("the stat line does not begin with a pid")
	}
	f := bytes.Fields(b[end+1:])
	// Fields are counted from 1 and the first two are behind us: the state is field 3.
	if len(f) < 20 || len(f[0]) != 1 {
		return Stat{}, errors.New("the stat line is too short")
	}
	ppid, err := strconv.Atoi(string(f[1]))
	if err != nil {
		return Stat{}, errors.New("the parent is no number")
	}
	session, err := strconv.Atoi(string(f[3]))
	if err != nil {
		return Stat{}, errors.New("the session is no number")
	}
	tty, err := strconv.ParseInt(string(f[4]), 10, 32)
	if err != nil {
		return Stat{}, errors.New("the terminal is no number")
	}
	threads, err := strconv.Atoi(string(f[17]))
	if err != nil {
		return Stat{}, errors.New("the number of threads is no number")
	}
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return Stat{}, errors.New("the start time is no number")
	}
	return Stat{PID: pid, PPID: ppid, Session: session, TTY: ttyDevice(uint32(tty)), State: f[0][0], Threads: threads, Start: start, Name: string(b[open+1 : end])}, nil
}

// ttyDevice is the device number in field 7, where the kernel puts the upper bits of the minor above the major's.
func ttyDevice(n uint32) uint64 {
	if n == 0 {
		return 0
	}
	return unix.Mkdev(n>>8&0xfff, n&0xff|n>>12&0xfff00)
}
