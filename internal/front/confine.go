package front

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/sandbox"
)

// The limits of the process.
const (
	mostData  = 512 << 20 // bytes that it may write to: the collector begins to work hard far below
	oomFirst  = 900       // of 1000: where memory ends, this process ends before the daemon, which starts it again
	mostFiles = 8192      // descriptors: two of each connection, and the daemon accepts fewer than 1200
)

// calls are those that the runtime and package net make after the start. A descriptor comes from the control socket only: nothing is
// opened, connected or started, and no memory becomes executable.
func calls() []sandbox.Call {
	all := []sandbox.Call{
		{Number: unix.SYS_CLONE, Arg: 0, Mask: unix.CLONE_THREAD, Value: unix.CLONE_THREAD},
		{Number: unix.SYS_TGKILL, Arg: 0, Mask: 0xffffffff, Value: uint32(os.Getpid())},
		{Number: unix.SYS_MMAP, Arg: 2, Mask: unix.PROT_EXEC, Value: 0},
		{Number: unix.SYS_MPROTECT, Arg: 2, Mask: unix.PROT_EXEC, Value: 0},
	}
	for _, n := range []uintptr{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_FCNTL,
		unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SENDTO,
		unix.SYS_SHUTDOWN, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
		unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2,
		unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_BRK,
		unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME,
		unix.SYS_GETTIMEOFDAY, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
		unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETRANDOM, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	} {
		all = append(all, sandbox.Call{Number: n})
	}
	return all
}

// Confine restricts this process, and returns what it could not restrict: the daemon reads back what the kernel enforces.
func Confine() Ready {
	var r Ready
	try := func(what string, err error) {
		if err != nil {
			r.Missing = append(r.Missing, fmt.Sprintf("%s: %v", what, err))
		}
	}
	try("it may have descriptors of others", closeInherited())
	try("it has another name", os.WriteFile("/proc/self/comm", []byte("gpushare-front"), 0)) // It may have been started by a descriptor.
	try("its memory is not the first to be freed", os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(oomFirst)), 0))
	for _, l := range []struct {
		what     int
		most     uint64
		describe string
	}{
		{unix.RLIMIT_DATA, mostData, "its memory is not limited"}, {unix.RLIMIT_CORE, 0, "its memory may be dumped"}, {unix.RLIMIT_NOFILE, mostFiles, "its descriptors are not limited"},
	} {
		try(l.describe, limit(l.what, l.most))
	}
	try("processes of its user may trace it", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	version, err := sandbox.LandlockProcess(sandbox.Files{}, sandbox.Options{Alone: true})
	if err == nil {
		r.Landlock = version
	}
	if !errors.Is(err, sandbox.ErrNoLandlock) { // Its calls are filtered nevertheless: it cannot open a file.
		try("Landlock does not confine it", err)
	}
	try(
		"its calls of the kernel are not filtered",
		(&sandbox.Filter{Only: calls(), Absent: []sandbox.Call{{Number: unix.SYS_CLONE3}}}).Apply(),
	)
	return r
}

// limit lowers a limit of this process.
func limit(what int, most uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(what, &l); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	l.Cur, l.Max = min(l.Max, most), min(l.Max, most)
	return os.NewSyscallError("setrlimit", unix.Setrlimit(what, &l))
}

// closeInherited closes what a program before this one left open: a daemon has descriptors of the process that started it. Those of
// this process would be closed by an exec.
func closeInherited() error {
	all, _, err := boundedread.Entries("/proc/self/fd", mostFiles)
	if err != nil {
		return err
	}
	for _, entry := range all {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd) // It is not used here.
		}
	}
	return nil
}
