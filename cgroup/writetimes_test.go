package cgroup

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// After a long write the runtime knows of the next ones, so that the rest of the program does not wait for them.
func TestLongWritesAreKnownToTheRuntime(t *testing.T) {
	const at = time.Hour
	for _, c := range []struct {
		name string
		write
		short bool
	}{
		{"a short one", write{took: longWrite - 1}, true},
		{"a short one that waited", write{took: longWrite - 1, waits: 1}, true},
		{"one that waited for a lock", write{took: longWrite, waits: 1}, false},
		{"one that waited for a lock, and then for a processor", write{took: longWrite, waits: 1, preempted: 1}, false},
		{"one of a cgroup of many threads", write{took: longWrite}, false},
		{"one whose thread lost its processor", write{took: longWrite, preempted: 1}, true},
		{"one that failed late", write{took: time.Second, waits: 1, err: unix.ENODEV}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w writeTimes
			if !w.short(at) {
				t.Fatal("a write is expected to be long before there was one")
			}
			c.ended = at
			w.note(&c.write)
			if got := w.short(at + longFor - 1); got != c.short {
				t.Errorf("the next ones are short: %v", got)
			}
			if !w.short(at + longFor) {
				t.Error("they are never short again")
			}
		})
	}
}

// aloneEnv lets a test run in a process of its own.
const aloneEnv = "GPUSHARE_TEST_ALONE"

// A freeze and a thaw wake no thread of the runtime: it would be one switch more for each, and two to three in most.
func TestAWriteWakesNoThread(t *testing.T) {
	if os.Getenv(aloneEnv) == "" { // What other tests have left in the runtime wakes threads too.
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
		cmd.Env = append(os.Environ(), aloneEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		} else if bytes.Contains(out, []byte("--- SKIP")) {
			t.Skipf("%s", out)
		}
		return
	}
	tree := newTree(t)
	cg := tree.top + "/still"
	if err := os.MkdirAll(tree.h.Dir(cg), 0o755); err != nil {
		t.Fatal(err)
	}
	wait := newWait(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // As in the daemon.
	const rounds, tries = 40, 50
	// The waits alone switch to a thread once a round, and the load of the machine adds some: the least of several tries counts.
	least := 0
	for i := range tries {
		freezer := NewKernelFreezer(tree.h.Mount) // A long write of the last try is forgotten.
		before := switches(t)
		for k := range rounds {
			wait()
			if _, err := freezer.set(cg, k%2 == 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := switches(t) - before; i == 0 || n < least {
			least = n
		}
		freezer.Forget(cg)
		if least <= rounds*5/4 {
			return
		}
	}
	t.Errorf("threads were switched to %d times in %d waits with a write each", least, rounds)
}

// newWait returns a wait of some milliseconds in which the program does nothing and has no timer of the runtime.
func newWait(t *testing.T) func() {
	t.Helper()
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	t.Cleanup(func() { f.Close() })
	conn, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	value := unix.ItimerSpec{Value: unix.NsecToTimespec((2300 * time.Microsecond).Nanoseconds())}
	return func() {
		_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(fd), 0, uintptr(unsafe.Pointer(&value)), 0, 0, 0)
		if err := conn.Read(func(fd uintptr) bool {
			var count [8]byte
			_, _, err := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&count)), uintptr(len(count)))
			return err != unix.EAGAIN
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// switches is how often threads of this process waited.
func switches(t *testing.T) (n int) {
	t.Helper()
	tids, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		text, err := os.ReadFile("/proc/self/task/" + tid.Name() + "/status")
		if err != nil {
			continue // The thread has ended.
		}
		for line := range strings.Lines(string(text)) {
			if v, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				count, err := strconv.Atoi(strings.TrimSpace(v))
				if err != nil {
					t.Fatal(err)
				}
				n += count
			}
		}
	}
	return n
}

// A write that fails says so, known to the runtime or not.
func TestAFailedWriteIsReported(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if got := writeUnseen(r.Fd(), []byte{'1'}); got.err != unix.EBADF || got.ended > procfs.BootTime() {
		t.Errorf("a write to the end that is read: %+v", got)
	}
}
