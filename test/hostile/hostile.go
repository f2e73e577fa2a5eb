// Package hostile has the hostile clients: programs that attack the daemon by what it reads of a process (its command line and environment,
// descriptors, threads and mappings), and by what they send to its socket. Clients is the list. A test binary becomes such a program:
// its TestMain calls Main first.
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

// The names of the clients that tests name.
const (
	Memory      = "memory"
	Descriptors = "descriptors"
	Threads     = "threads"
	Mappings    = "mappings"
	Passing     = "passing"
	Locked      = "locked" // LockedCommand runs it.
)

// Says is what the command line and the environment of Memory begin with.
const Says = "hostile=yes"

// UID is a user that no other test uses, because limits of processes are counted for each user.
const UID = 64900

// Main becomes the client that the environment names, and then does not return. It says "ready" with the number that it has reached.
func Main() {
	words := strings.SplitN(os.Getenv(environment), " ", 4)
	if len(words) < 3 {
		return
	}
	n, err := strconv.Atoi(words[1])
	uid, err2 := strconv.Atoi(words[2])
	c, ok := Find(words[0])
	if err = errors.Join(err, err2); err == nil && !ok {
		err = errors.New("there is no such client")
	}
	if err == nil {
		n, err = c.run(n, uid, strings.Join(words[3:], ""))
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

// Environment makes Main a client, with how much of it, a user that it becomes, and the socket.
func Environment(name string, n, uid int, socket string) string {
	return fmt.Sprintf("%s=%s %d %d %s", environment, name, n, uid, socket)
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

func memory(bytes, uid int, _ string) (int, error) {
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
func locked(_, uid int, name string) (int, error) {
	if err := become(uid); err != nil {
		return 0, err
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	b, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	b[0] = 1
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // Its end is what it waits for.
	if err := unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE); err != nil {
		return 0, err
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
			return 0, err
		}
		if strings.Contains(string(stat), ") D ") {
			return 0, unix.Munmap(b)
		}
		runtime.Gosched()
	}
}

func descriptors(n, uid int, _ string) (int, error) {
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

func threads(n, uid int, _ string) (int, error) {
	n = mostThreads(n)
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

// mostThreads is as many, and an eighth of what the host and the user may have at most: other programs need some too.
func mostThreads(n int) int {
	for _, limit := range []string{"threads-max", "pid_max"} {
		b, err := os.ReadFile("/proc/sys/kernel/" + limit)
		if most, err2 := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && err2 == nil {
			n = min(n, most/8)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err == nil {
		n = min(n, int(min(limit.Cur, 1<<20))/8)
	}
	return n
}

func mappings(n, uid int, _ string) (int, error) {
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
	cmd.Env = []string{Environment(program, n, uid, ""), "GOMAXPROCS=2"}
	return cmd
}

// LockedCommand returns the command of Locked, with a file.
func LockedCommand(tb testing.TB, name string) *exec.Cmd {
	tb.Helper()
	cmd := Command(tb, Locked, 0)
	cmd.Env[0] += name
	return cmd
}
