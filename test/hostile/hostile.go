// Package hostile has programs for tests that make what root reads of a process as long and as slow as a user can: its command line
// and environment (PR_SET_MM_MAP), descriptors, threads and mappings. A test binary becomes such a program: its TestMain calls Main
// first. It also has what a client of a socket can pass to make its reader wait.
package hostile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/tracing"
)

// environment has the program and its arguments.
const environment = "GPUSHARE_TEST_HOSTILE"

// The programs. Each has a number and a user as arguments, and says "ready" with the number that it has reached.
const (
	// Memory declares a sparse mapping of that many bytes to be its command line and environment. They begin with Says.
	Memory = "memory"
	// Descriptors has that many descriptors of a device, as far as the limits of the host allow.
	Descriptors = "descriptors"
	// Threads has that many threads.
	Threads = "threads"
	// Mappings has that many mappings, as far as vm.max_map_count allows, and one of 1 GiB.
	Mappings = "mappings"
	// Passing opens that many connections to a socket, its third argument, and passes a TCP socket that lingers on each.
	Passing = "passing"
	// Locked keeps the lock of its memory while a file system does not answer. LockedCommand runs it.
	Locked = "locked"
)

// Says is what the command line and the environment of Memory begin with.
const Says = "hostile=yes"

// UID is a user that no other test uses, because limits of processes are counted for each user.
const UID = 64900

// Main becomes the program that the environment names, and then does not return.
func Main() {
	words := strings.SplitN(os.Getenv(environment), " ", 4)
	if len(words) < 3 {
		return
	}
	n, err := strconv.Atoi(words[1])
	uid, err2 := strconv.Atoi(words[2])
	if err = errors.Join(err, err2); err == nil {
		switch words[0] {
		case Memory:
			n, err = memory(n, uid)
		case Descriptors:
			n, err = descriptors(n, uid)
		case Threads:
			n, err = threads(n, uid)
		case Mappings:
			n, err = mappings(n, uid)
		case Passing:
			n, err = passing(n, uid, words[3])
		case Locked:
			err = locked(words[3], uid)
		}
	}
	if err != nil {
		fmt.Println("cannot be", words[0], err)
		os.Exit(1)
	}
	fmt.Println("ready", n)
	for {
		_ = unix.Pause() // It returns for signals that are handled.
	}
}

// become is the last step that needs root. The daemon reads more of a process that is dumpable, which one that changed its user is not.
func become(uid int) error {
	if uid == os.Getuid() {
		return nil
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
}

func memory(bytes, uid int) (int, error) {
	if err := become(uid); err != nil {
		return 0, err
	}
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return 0, err
	}
	copy(b, Says)
	return bytes, declare(b)
}

// declare makes a mapping the command line and the environment of this process. It needs no privilege.
func declare(b []byte) error {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	field := func(n int) uint64 { // As proc_pid_stat(5) counts.
		v, err2 := strconv.ParseUint(fields[n-3], 10, 64)
		err = errors.Join(err, err2)
		return v
	}
	brk, _, _ := unix.RawSyscall(unix.SYS_BRK, 0, 0, 0)
	start := uint64(uintptr(unsafe.Pointer(&b[0])))
	end := start + uint64(len(b))
	m := make([]byte, 0, 104) // struct prctl_mm_map
	for _, v := range []uint64{field(26), field(27), field(45), field(46), field(47), uint64(brk), field(28), start, end, start, end, 0} {
		m = binary.NativeEndian.AppendUint64(m, v)
	}
	m = binary.NativeEndian.AppendUint32(m, 0)       // no auxiliary vector
	m = binary.NativeEndian.AppendUint32(m, 1<<32-1) // the same program
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), 0)
}

// locked keeps the lock of its memory (mmap_lock) when its standard input ends, if the file system of a file does not answer then.
// One thread writes to a page that is being written back, and waits for it. Another one unmaps the page, which takes the lock and
// waits for the first.
func locked(name string, uid int) error {
	if err := become(uid); err != nil {
		return err
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	b, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	b[0] = 1
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // Its end is what it waits for.
	if err := unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE); err != nil {
		return err
	}
	begins := make(chan int)
	go func() {
		runtime.LockOSThread()
		begins <- unix.Gettid()
		_, _ = unix.Getrandom(b[:1], 0) // The kernel writes to the page.
	}()
	tid := <-begins
	for { // Until it waits in the kernel, which no event reports.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", tid))
		if err != nil {
			return err
		}
		if strings.Contains(string(stat), ") D ") {
			return unix.Munmap(b)
		}
		runtime.Gosched()
	}
}

func descriptors(n, uid int) (int, error) {
	limit := unix.Rlimit{Cur: uint64(n), Max: uint64(n)} // At most fs.nr_open, which is 1 Mi.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return 0, err
		}
		limit.Cur = limit.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return 0, err
		}
	}
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	for i := range n {
		if _, err := unix.Dup(fd); err != nil {
			return i, become(uid)
		}
	}
	return n, become(uid)
}

func threads(n, uid int) (int, error) {
	debug.SetMaxThreads(n + 1000)
	if err := become(uid); err != nil {
		return 0, err
	}
	started := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread()
			started <- struct{}{}
			for {
				_ = unix.Pause()
			}
		}()
		<-started
	}
	return n, nil
}

func mappings(n, uid int) (int, error) {
	if err := become(uid); err != nil {
		return 0, err
	}
	if _, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE); err != nil {
		return 0, err
	}
	unit := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, n*unit, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return 0, err
	}
	for i := 0; i < n; i += 2 { // Every second page differs, so each is a mapping.
		if err := unix.Mprotect(b[i*unit:(i+1)*unit], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return i, nil //nolint:nilerr // vm.max_map_count is reached.
		}
	}
	return n, nil
}

// Command returns the command of a program with a number, which becomes an ordinary user if root runs it.
func Command(tb testing.TB, program string, n int) *exec.Cmd {
	tb.Helper()
	uid := os.Getuid()
	if uid == 0 {
		uid = UID
	}
	cmd := tracing.Command(tb, 0, "")
	cmd.Env = []string{fmt.Sprintf("%s=%s %d %d", environment, program, n, uid), "GOMAXPROCS=2"}
	return cmd
}

// LockedCommand returns the command of Locked, with a file.
func LockedCommand(tb testing.TB, name string) *exec.Cmd {
	tb.Helper()
	cmd := Command(tb, Locked, 0)
	cmd.Env[0] += " " + name
	return cmd
}
