// Package tracing has programs for tests that need processes which are hard to kill or to freeze: one that traces threads of
// others (ptrace(2)) and never continues them, and some to be traced. A test binary becomes such a program: its TestMain calls
// Main first.
package tracing

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/programs"
)

// environment has the program and its arguments.
const environment = "GPUSHARE_TEST_TRACING"

// The programs.
const (
	// Trace seizes the threads in its arguments, so that each stops in its exit, says "traces", and never continues one. It
	// ignores SIGTERM.
	Trace = "trace"
	// TraceUntilTerm is Trace, and ends by SIGTERM.
	TraceUntilTerm = "trace-until-term"
	// ExecOnInput executes sleep when its standard input ends. While a thread of it is traced, the execve waits for that
	// thread's exit.
	ExecOnInput = "exec-on-input"
	// FirstThreadExits continues after the exit of its first thread, which is when its standard input ends.
	FirstThreadExits = "first-thread-exits"
	// Populates maps and unmaps memory: nearly all the time it runs in the kernel, in calls that only SIGKILL interrupts.
	Populates = "populates"
	// Thaws thaws a cgroup whenever it is frozen, before a program of it is seen to stop. ThawCommand runs it.
	Thaws = "thaws"
	// Large has 512 MiB of memory and several threads, so that its exit takes time.
	Large = "large"
)

func init() { runtime.LockOSThread() } // Main runs on the first thread.

// Main becomes the program that the environment names, and then does not return.
func Main() {
	words := strings.Fields(os.Getenv(environment))
	if len(words) == 0 {
		runtime.UnlockOSThread()
		return
	}
	switch words[0] {
	case Trace:
		signal.Ignore(syscall.SIGTERM)
		go trace(words[1:])
	case TraceUntilTerm:
		go trace(words[1:])
	case ExecOnInput:
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // Its end is what it waits for.
		_ = syscall.Exec("/bin/sleep", []string{"sleep", "600"}, nil)
		os.Exit(1)
	case FirstThreadExits:
		go func() { fmt.Println("ready"); wait() }()
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // Its end is what it waits for.
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	case Populates:
		fmt.Println("ready")
		for {
			b, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
			if err != nil {
				os.Exit(1)
			}
			_ = unix.Munmap(b)
		}
	case Thaws:
		err := thaw(words[1])
		fmt.Println("cannot thaw", words[1], err)
		os.Exit(1)
	case Large:
		b := make([]byte, 512<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		fmt.Println("ready")
		wait()
		runtime.KeepAlive(b)
	}
	wait()
}

// trace traces from another thread than the first, as debuggers with several threads do.
func trace(tids []string) {
	runtime.LockOSThread()
	for _, w := range tids {
		tid, err := strconv.Atoi(w)
		if err == nil {
			err = seize(tid)
		}
		if err != nil {
			fmt.Println("cannot trace", w, err)
			os.Exit(1)
		}
	}
	fmt.Println("traces")
	wait()
}

// seize traces a thread such that it stops at the start of its exit (ptrace(2)).
func seize(tid int) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// thaw undoes each freeze of the cgroup whose cgroup.freeze is a file. The kernel reports a write to that file as an event
// (inotify(7)), and a real-time priority above that of the cgroup's programs lets this one run at once.
func thaw(name string) error {
	runtime.LockOSThread()
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 2}, 0); err != nil {
		return err
	}
	file, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	notify, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	if _, err := unix.InotifyAddWatch(notify, name, unix.IN_MODIFY); err != nil {
		return err
	}
	fmt.Println("thaws")
	events, value := make([]byte, 4096), make([]byte, 1)
	for {
		if _, err := unix.Read(notify, events); err != nil && err != unix.EINTR {
			return err
		}
		// Its own write is an event too, and then the value is 0.
		_, err := unix.Pread(file, value, 0)
		if err == nil && value[0] == '1' {
			_, err = unix.Pwrite(file, []byte("0"), 0)
		}
		if err != nil {
			wait() // The cgroup ended.
		}
	}
}

// wait waits for a signal that ends the process. It keeps its thread: only that may continue what it traces.
func wait() {
	for {
		_ = unix.Pause() // It returns for signals that are handled.
	}
}

// Command returns the command of a program, for an ordinary user unless uid is 0.
func Command(tb testing.TB, uid int, program string, args ...int) *exec.Cmd {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	words := []string{program}
	for _, a := range args {
		words = append(words, strconv.Itoa(a))
	}
	cmd := exec.Command(Reachable(tb, self))
	cmd.Env = []string{environment + "=" + strings.Join(words, " "), "GOMAXPROCS=4"}
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return cmd
}

// ThawCommand returns the command of Thaws for a cgroup.freeze, as root.
func ThawCommand(tb testing.TB, name string) *exec.Cmd {
	tb.Helper()
	cmd := Command(tb, 0, Thaws)
	cmd.Env[0] += " " + name
	return cmd
}

// Reachable returns a path of the test binary that ordinary users can execute: it is built in a directory of its user. /proc/self
// would be the new process, so it is this one's.
func Reachable(tb testing.TB, self string) string {
	tb.Helper()
	b, err := os.ReadFile(self)
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "tracing")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) }) // It is below the host's temporary directory.
	name := dir + "/program"
	if err := programs.Write(name, b); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	return name
}

// Program is a program that runs.
type Program struct {
	PID   int
	Start uint64
	Ended <-chan struct{} // closed when it was reaped
	stdin interface{ Close() error }
}

// Run starts a command of Command, waits until it says that it is ready, and ends it with the test.
func Run(tb testing.TB, cmd *exec.Cmd) Program {
	tb.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // A signal ends it.
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // It may have ended.
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			tb.Errorf("pid %d was killed and does not exit", cmd.Process.Pid)
		}
	})
	if err != nil || strings.HasPrefix(line, "cannot") {
		tb.Fatalf("the program does not start: %q, %v", line, err)
	}
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		tb.Fatal(err)
	}
	return Program{PID: cmd.Process.Pid, Start: start, Ended: ended, stdin: stdin}
}

// CloseInput ends the standard input.
func (p Program) CloseInput() { _ = p.stdin.Close() } // Nothing is written to it.

// Others returns the threads of a process but the first.
func Others(tb testing.TB, pid int) []int {
	tb.Helper()
	threads, err := procfs.Threads(pid)
	if err != nil {
		tb.Fatal(err)
	}
	var tids []int
	for _, t := range threads {
		if t.TID != pid {
			tids = append(tids, t.TID)
		}
	}
	if len(tids) == 0 {
		tb.Fatalf("pid %d has one thread only", pid)
	}
	return tids
}

// AwaitState waits until a thread is in a state, which no event reports.
func AwaitState(tb testing.TB, tid int, state byte) {
	tb.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s, err := procfs.Read(tid)
		if err == nil && s.State == state {
			return
		}
		if err != nil || time.Now().After(end) {
			tb.Fatalf("thread %d is in state %c, want %c (%v)", tid, s.State, state, err)
		}
	}
}
