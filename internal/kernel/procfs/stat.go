package procfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// ErrNoProcess means that the process has exited, or that its pid is reused by another process.
var ErrNoProcess = errors.New("no such process")

// Stat is the part of /proc/PID/stat that gpushare needs.
type Stat struct {
	PID     int
	PPID    int
	Session int    // the pid of the session's leader, 0 for kernel threads
	TTY     uint64 // the device number of its controlling terminal, as unix.Mkdev makes it; 0 without one
	State   byte   // of the first thread: 'R', 'S', 'D', 'T', 'Z', 'X', … as in proc_pid_stat(5)
	Threads int    // including a first thread that has exited while others run
	Start   uint64 // start time in clock ticks since boot, field 22
	Name    string // the command's name, at most 15 bytes
}

// Dead reports whether the process has exited and only waits to be reaped. An exit of the first thread is not enough: the
// other threads may continue, shortly while the process exits, or indefinitely if the program intends it. A process is reaped
// after its last thread has exited.
func (s Stat) Dead() bool {
	return s.State == 'Z' && s.Threads <= 1 || s.State == 'X' || s.State == 'x'
}

// Ended reports whether what Read returned is of a process that has ended. Of a failure with another reason nothing is known.
func Ended(s Stat, err error) bool { return errors.Is(err, ErrNoProcess) || err == nil && s.Dead() }

// Read reads the process's state. ErrNoProcess when there is no such process.
func Read(pid int) (Stat, error) {
	buf := statBuffers.Get().(*[statSize]byte) //nolint:forcetypeassert // It has no others.
	defer statBuffers.Put(buf)
	b, err := readStat(pid, buf[:])
	if err != nil {
		return Stat{}, err
	}
	s, err := parseStat(b)
	if err != nil {
		return Stat{}, fmt.Errorf("cannot read the state of pid %d: %w", pid, err)
	}
	return s, nil
}

// statSize has room for a line of /proc/PID/stat: three hundred bytes, of which a number may become longer.
const statSize = 1024

var statBuffers = sync.Pool{New: func() any { return new([statSize]byte) }}

// readStat reads /proc/PID/stat: in one read, unless it is longer than ever seen. The daemon reads it a dozen times for each lease.
func readStat(pid int, buf []byte) ([]byte, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	n, err := readSmall(pid, "/stat", buf)
	switch {
	case errors.Is(err, ErrNoProcess):
		return nil, fmt.Errorf("pid %d: %w", pid, err)
	case err != nil:
		return nil, err
	case n == 0 || n == len(buf) || buf[n-1] != '\n':
		return readFile(pid, "stat")
	}
	return buf[:n], nil
}

// Start returns the start time of the process, in clock ticks since boot. ErrNoProcess when there is no such process.
func Start(pid int) (uint64, error) {
	s, err := Read(pid)
	return s.Start, err
}

// Alive reports whether the process with this pid and start time runs. One that waits to be reaped does not.
func Alive(pid int, start uint64) bool {
	s, err := Read(pid)
	return err == nil && s.Start == start && !s.Dead()
}

// Command is the process's command line with its arguments joined by spaces, cut after a few KiB, or its name in brackets when
// it has none (kernel threads, zombies) or its memory does not answer, or empty when it has exited.
func Command(ctx context.Context, pid int) string {
	if b, cut, err := memory(ctx, pid, "cmdline", boundedread.Command); err == nil {
		if line := joinArguments(b, cut); line != "" {
			return line
		}
	}
	s, err := Read(pid)
	if err != nil {
		return ""
	}
	return "[" + s.Name + "]"
}

// joinArguments makes a line of the format of /proc/PID/cmdline.
func joinArguments(b []byte, cut bool) string {
	line := strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
	if cut && line != "" {
		line += " …"
	}
	return line
}

// Environment is the beginning of the environment that a process was started with, in the format of /proc. It may be forged: a
// process can declare any part of its memory to be it (PR_SET_MM), so it proves nothing about a process of a user.
func Environment(ctx context.Context, pid int) ([]byte, error) {
	b, _, err := memory(ctx, pid, "environ", boundedread.Environment)
	if len(b) > 0 || errors.Is(err, boundedread.ErrNoAnswer) || ctx.Err() != nil {
		return b, err
	}
	// A first thread that has ended no longer has an environment, and its files belong to root; the other threads have theirs.
	tids, none := threadIDs(pid)
	if err == nil {
		err = none
	}
	for _, tid := range tids[:min(len(tids), mostThreadsRead)] {
		if b, _, err := memory(ctx, pid, "task/"+strconv.Itoa(tid)+"/environ", boundedread.Environment); err == nil && len(b) > 0 {
			return b, nil
		}
	}
	return nil, err
}

// mostThreadsRead is how many threads are read for an environment: they all have the same.
const mostThreadsRead = 8

// Name is the process's short name, as `ps -o comm` shows it, or empty when it has exited.
func Name(pid int) string {
	s, err := Read(pid)
	if err != nil {
		return ""
	}
	return s.Name
}

// UID is the process's real user id.
func UID(pid int) (uint32, error) { return user(pid, 0) }

// EUID is the process's effective user id, which determines its permissions and its SO_PEERCRED.
func EUID(pid int) (uint32, error) { return user(pid, 1) }

// user reads one of the real, effective, saved and file system's user ids.
func user(pid, which int) (uint32, error) {
	ids, err := UIDs(pid)
	if err != nil {
		return 0, err
	}
	return uint32(ids[which]), nil
}

// UIDs are all the user ids of a process: real, effective, saved and of the file system, in this order.
func UIDs(pid int) ([]int, error) {
	b, err := readFile(pid, "status")
	if err != nil {
		return nil, err
	}
	ids, ok := parseUIDs(string(b))
	if !ok {
		return nil, fmt.Errorf("cannot read the users of pid %d: its status has no Uid line with four ids", pid)
	}
	return ids, nil
}

// parseUIDs reads the four user ids in /proc/PID/status.
func parseUIDs(status string) (ids []int, ok bool) {
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		for _, f := range strings.Fields(rest) {
			uid, err := strconv.ParseUint(f, 10, 32)
			if err != nil {
				return nil, false
			}
			ids = append(ids, int(uid))
		}
		return ids, len(ids) == 4
	}
	return nil, false
}

// PIDs lists all visible processes, in ascending order.
func PIDs() ([]int, error) {
	pids, err := numbers("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	slices.Sort(pids)
	return pids, nil
}

// All reads every visible process. A process that exits meanwhile is left out.
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

// Written is how many bytes the threads of a process, and those that have ended, have written with write(2) and the calls like it.
func Written(pid int) (uint64, error) {
	b, err := readFile(pid, "io")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "wchar: "); ok {
			return strconv.ParseUint(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, fmt.Errorf("cannot read what pid %d has written: the kernel does not count it", pid)
}

func readFile(pid int, name string) ([]byte, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	b, _, err := boundedread.OfProcess(pid, name, boundedread.Process)
	return b, unreadable(pid, name, err)
}

// memory reads the beginning of a file that the kernel copies from the memory of a process.
func memory(ctx context.Context, pid int, name string, limit int) (b []byte, cut bool, err error) {
	owner, err := UID(pid)
	if err != nil {
		return nil, false, err
	}
	b, cut, err = boundedread.Memory(ctx, pid, name, owner, limit)
	return b, cut, unreadable(pid, name, err)
}

func unreadable(pid int, name string, err error) error {
	// A process that exits between open and read returns ESRCH.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return fmt.Errorf("cannot read %s of pid %d: %w", name, pid, err)
	}
	return nil
}

// numbers lists the entries of a directory that are numbers: processes, threads.
func numbers(dir string) ([]int, error) {
	var all []int
	err := boundedread.EachName(dir, func(names []string) bool {
		for _, n := range names {
			if n[0] < '1' || n[0] > '9' {
				continue
			}
			if number, err := strconv.Atoi(n); err == nil {
				all = append(all, number)
			}
		}
		return len(all) < boundedread.Names
	})
	return all, err
}

// parseStat reads the line of /proc/PID/stat. The name is in parentheses and may itself contain spaces and parentheses, so
// it ends at the last one.
func parseStat(b []byte) (Stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return Stat{}, errors.New("the stat line has no name in parentheses")
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	if err != nil {
		return Stat{}, errors.New("the stat line does not begin with a pid")
	}
	// proc_pid_stat(5) counts fields from 1. f starts after the first two: f[0] is the state, field 3.
	var f [20][]byte
	n := 0
	for field := range bytes.FieldsSeq(b[end+1:]) {
		f[n] = field
		if n++; n == len(f) {
			break
		}
	}
	if n < len(f) || len(f[0]) != 1 {
		return Stat{}, errors.New("the stat line is too short")
	}
	ppid, err := strconv.Atoi(string(f[1]))
	if err != nil {
		return Stat{}, errors.New("the parent is not a number")
	}
	session, err := strconv.Atoi(string(f[3]))
	if err != nil {
		return Stat{}, errors.New("the session is not a number")
	}
	tty, err := strconv.ParseInt(string(f[4]), 10, 32)
	if err != nil {
		return Stat{}, errors.New("the terminal is not a number")
	}
	threads, err := strconv.Atoi(string(f[17]))
	if err != nil {
		return Stat{}, errors.New("the number of threads is not a number")
	}
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return Stat{}, errors.New("the start time is not a number")
	}
	return Stat{
		PID:     pid,
		PPID:    ppid,
		Session: session,
		TTY:     ttyDevice(uint32(tty)),
		State:   f[0][0],
		Threads: threads,
		Start:   start,
		Name:    string(b[open+1 : end]),
	}, nil
}

// ttyDevice is the device number in field 7, where the kernel puts the upper bits of the minor above the major's.
func ttyDevice(n uint32) uint64 {
	if n == 0 {
		return 0
	}
	return unix.Mkdev(n>>8&0xfff, n&0xff|n>>12&0xfff00)
}
