package silentfs

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// environment has the program and its arguments. A test binary becomes such a program: its TestMain calls Main first.
const environment = "GPUSHARE_TEST_SILENTFS"

// The programs.
const (
	// Serve mounts a file system at a directory, becomes its user and serves it, and says "serves". A third argument is a descriptor of
	// one that is mounted already. Its names are below. It ignores
	// SIGTERM, and does not end with its connection.
	Serve = "serve"
	// Wait says "waits" and does one of the calls below with a path, which does not return.
	Wait = "wait"
)

// The names in the file system, and requests that are never answered. All others are answered as a file system without them does, but
// those of its root directory: its access is never checked.
const (
	Lost   = "lost"   // its lookup
	Sealed = "sealed" // its open
	Direct = "direct" // its read
	Cached = "cached" // its read, which fills the page cache, and its flush
)

// The calls of Wait.
const (
	Stat    = "stat"
	Open    = "open"
	Read    = "read"
	Exec    = "exec"
	Chdir   = "chdir"
	Fault   = "fault"   // of a page that it has mapped
	Threads = "threads" // many that do the same lookup, of which all but one wait for a lock
)

// Main becomes the program that the environment names, and then does not return.
func Main() {
	words := strings.Fields(os.Getenv(environment))
	if len(words) == 0 {
		return
	}
	os.Unsetenv(environment)
	var err error
	switch words[0] {
	case Serve:
		if len(words) > 3 {
			err = serveMounted(words[3])
		} else {
			err = serveAs(words[1], words[2])
		}
	case Wait:
		err = wait(words[1], words[2])
	}
	fmt.Println("cannot", words, err)
	os.Exit(1)
}

// mount mounts a file system for a user, as fusermount(1) does. It returns the connection.
func mount(dir string, uid int) (int, error) {
	conn, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", conn, uid, uid)
	if err := unix.Mount("silentfs", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(conn)
		return -1, fmt.Errorf("cannot mount a FUSE file system at %s: %w", dir, err)
	}
	return conn, nil
}

// serveAs mounts a file system for a user, and serves it.
func serveAs(dir, user string) error {
	uid, err := strconv.Atoi(user)
	if err != nil {
		return err
	}
	conn, err := mount(dir, uid)
	if err != nil {
		return err
	}
	if uid != os.Getuid() {
		if err := syscall.Setresgid(uid, uid, uid); err != nil {
			return err
		}
		if err := syscall.Setresuid(uid, uid, uid); err != nil {
			return err
		}
		// A process that changes its user is not traced by others of the user, unless it says so.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	return serveOn(conn)
}

// serveMounted serves a file system that is mounted already.
func serveMounted(descriptor string) error {
	conn, err := strconv.Atoi(descriptor)
	if err != nil {
		return err
	}
	return serveOn(conn)
}

// serveOn serves a connection, and does not return.
func serveOn(conn int) error {
	signal.Ignore(syscall.SIGTERM)
	fmt.Println("serves")
	f := &FS{conn: conn, mode: unix.S_IFREG | 0o777}
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(conn, buf)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN || err == unix.ENOENT:
			continue
		case err != nil:
			waitForever() // The connection was aborted, or unmounted. It does not end by itself, as a server of several does not.
		}
		f.answerSome(buf[:n])
	}
}

// waitForever waits for a signal that ends the process. A program of Go without cgo whose goroutines all wait for each other ends.
func waitForever() {
	for {
		_, _ = unix.Poll(nil, -1) // A signal that is handled interrupts it.
	}
}

// The nodes of the names.
const (
	nodeSealed = 10 + iota
	nodeDirect
	nodeCached
)

// answerSome answers all but what the names are for.
func (f *FS) answerSome(request []byte) {
	op, node := binary.NativeEndian.Uint32(request[4:]), binary.NativeEndian.Uint64(request[16:])
	switch op {
	case opForget, opBatchForget, opInit, opInterrupt:
		f.answer(request)
	case opGetattr:
		f.reply(request, 0, append(make([]byte, 16, 104), f.attributesOf(node)...))
	case opLookup:
		name := string(request[inHeader : len(request)-1])
		id, ok := map[string]uint64{Sealed: nodeSealed, Direct: nodeDirect, Cached: nodeCached}[name]
		switch {
		case name == Lost:
			silent()
		case !ok:
			f.reply(request, unix.ENOENT, nil)
		default:
			out := make([]byte, 40, 128)
			binary.NativeEndian.PutUint64(out, id)
			f.reply(request, 0, append(out, f.attributesOf(id)...))
		}
	case opOpen:
		out := make([]byte, 16)
		if node == nodeDirect {
			out[8] = 1 // FOPEN_DIRECT_IO
		}
		if node == nodeSealed {
			silent()
			return
		}
		f.reply(request, 0, out)
	case opRead, opFlush, opAccess:
		silent()
	default:
		f.reply(request, unix.ENOSYS, nil)
	}
}

// silent says that a request was read that is never answered: from now on no signal ends the wait of its process.
func silent() { fmt.Println("silent") }

// attributesOf is a struct fuse_attr of one of the names, or of the root directory.
func (f *FS) attributesOf(node uint64) []byte {
	if node == rootNode {
		return f.attributes(rootNode)
	}
	out := f.attributes(fileNode)
	binary.NativeEndian.PutUint64(out, node)
	binary.NativeEndian.PutUint64(out[8:], 1<<20) // its size
	return out
}

// Numbers of requests in linux/fuse.h.
const (
	opFlush  = 25
	opAccess = 34
)

// wait does a call that does not return.
func wait(call, path string) error {
	runtime.LockOSThread()
	fmt.Println("waits")
	switch call {
	case Stat:
		_, err := os.Lstat(path)
		return err
	case Open:
		_, err := unix.Open(path, unix.O_RDONLY, 0)
		return err
	case Exec:
		return syscall.Exec(path, []string{path}, nil)
	case Chdir:
		return unix.Chdir(path)
	case Threads:
		for range 20 {
			go func() { runtime.LockOSThread(); _, _ = os.Lstat(path) }() // They do not return.
		}
		select {}
	}
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if call == Read {
		_, err := unix.Read(fd, make([]byte, 4096))
		return err
	}
	b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return fmt.Errorf("it has read %d", b[0])
}

// Environment is the variable that makes the test binary one of the programs.
func Environment(program string, args ...string) string {
	return environment + "=" + strings.Join(append([]string{program}, args...), " ")
}

// Server is a process that serves a file system.
type Server struct {
	Dir   string
	PID   int
	Ended <-chan struct{} // closed when it was reaped

	silent <-chan struct{}
	stop   func()
}

// Mounted mounts a file system of a user at a new directory, which everybody reaches, for a server of the test's own. The file system ends
// with the test at the latest.
func Mounted(tb testing.TB, uid int) (dir string, conn *os.File) {
	tb.Helper()
	dir = newDir(tb)
	fd, err := mount(dir, uid)
	if err != nil {
		tb.Skipf("needs FUSE: %v", err)
	}
	tb.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH) }) // It may have been unmounted.
	return dir, os.NewFile(uintptr(fd), "/dev/fuse")
}

// newDir makes a directory that everybody reaches.
func newDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "silentfs")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.Remove(dir) }) // It is below the host's temporary directory.
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// Start starts a process that serves a file system of a user at a new directory, which everybody reaches. Its file system and itself end
// with the test at the latest.
func Start(tb testing.TB, uid int) *Server {
	tb.Helper()
	dir := newDir(tb)
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{Environment(Serve, dir, strconv.Itoa(uid))}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line, _ := lines.ReadString('\n') // A server that has ended says why, or nothing.
	ended, silent := make(chan struct{}), make(chan struct{})
	go func() { // ends with the server
		if _, err := lines.ReadString('\n'); err == nil {
			close(silent)
		}
		_, _ = io.Copy(io.Discard, lines) // It would wait for a reader.
		_ = cmd.Wait()                    // A signal ends it.
		close(ended)
	}()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			_ = cmd.Process.Kill() // It may have ended.
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				tb.Errorf("the server %d was killed and does not exit", cmd.Process.Pid)
			}
			_ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH) // It may not be mounted.
		})
	}
	tb.Cleanup(stop)
	switch {
	case strings.Contains(line, "/dev/fuse"):
		stop()
		tb.Skipf("needs FUSE: %s", line)
	case line != "serves\n":
		tb.Fatalf("the server says %q", line)
	}
	return &Server{Dir: dir, PID: cmd.Process.Pid, Ended: ended, silent: silent, stop: stop}
}

// AwaitSilent waits until the server has read a request that it never answers.
func (s *Server) AwaitSilent(tb testing.TB) {
	tb.Helper()
	select {
	case <-s.silent:
	case <-time.After(20 * time.Second):
		tb.Fatalf("nothing waits for the file system at %s", s.Dir)
	}
}

// Numbered reports whether the kernel reports which connection the server has open: since Linux 6.16.
func (s *Server) Numbered(tb testing.TB) bool {
	tb.Helper()
	dir := fmt.Sprintf("/proc/%d/fdinfo/", s.PID)
	files, _, err := boundedread.Entries(dir, boundedread.Files)
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		b, _, err := boundedread.OfProcess(s.PID, "fdinfo/"+f.Name(), boundedread.Process)
		if err == nil && strings.Contains(string(b), "fuse_connection:") {
			return true
		}
	}
	return false
}

// Stop ends the server and its file system.
func (s *Server) Stop() { s.stop() }

// Path is a name in the file system.
func (s *Server) Path(name string) string { return filepath.Join(s.Dir, name) }
