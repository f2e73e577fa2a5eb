package procfs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/hostile"
	"github.com/gpushare/gpushare/test/silentfs"
	"github.com/gpushare/gpushare/test/tracing"
)

func TestMain(m *testing.M) {
	hostile.Main()
	os.Exit(m.Run())
}

// allocated is how many bytes a function allocates. Tests that use it do not run in parallel.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A process may declare half a GiB to be its command line and its environment. Reading them costs a few KiB.
func TestDeclaredMemoryIsReadToABound(t *testing.T) {
	p := tracing.Run(t, hostile.Command(t, hostile.Memory, 512<<20))
	var command string
	if n := allocated(func() { command = procfs.Command(t.Context(), p.PID) }); n > 64<<10 {
		t.Errorf("its command line costs %d KiB", n>>10)
	}
	if !strings.HasPrefix(command, hostile.Says) || len(command) > boundedread.Command+8 {
		t.Errorf("its command line has %d bytes: %.40q", len(command), command)
	}
	var b []byte
	var err error
	if n := allocated(func() { b, err = procfs.Environment(t.Context(), p.PID) }); n > 512<<10 {
		t.Errorf("its environment costs %d KiB", n>>10)
	}
	if err != nil || len(b) != boundedread.Environment || !strings.HasPrefix(string(b), hostile.Says) {
		t.Errorf("its environment has %d bytes, %v", len(b), err)
	}
}

// A process may keep the lock of its memory, without which its command line cannot be read: then it has its name only, and the
// caller goes on.
func TestCommandOfLockedMemory(t *testing.T) {
	fs, name := mountFor(t)
	p := tracing.Run(t, hostile.LockedCommand(t, name))
	t.Cleanup(func() { // before the program is killed, which waits for the file system
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	fs.Silence()
	if c := procfs.Command(t.Context(), p.PID); !strings.HasSuffix(c, "/program") {
		t.Errorf("before it keeps the lock, its command is %q", c)
	}
	p.CloseInput()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for without := 0; without < 20; { // No more of them wait than one user may have.
			if procfs.Command(t.Context(), p.PID) == "[program]" {
				without++
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("the caller waits for the lock, or it is not kept")
	}
}

// mountFor mounts a file system for a file of another user.
func mountFor(t *testing.T) (fs *silentfs.FS, file string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile") // The directory of a test is for its user.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if fs, err = silentfs.Mount(dir, "file", 0); err != nil {
		t.Skipf("needs root and FUSE: %v", err)
	}
	return fs, filepath.Join(dir, "file")
}

// A process with very many descriptors does not keep those of others from being read, and costs no memory for each.
func TestManyDescriptors(t *testing.T) {
	const most = 1 << 20
	p := tracing.Run(t, hostile.Command(t, hostile.Descriptors, most))
	file := filepath.Join(t.TempDir(), "of-another")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other := keepOpen(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n, before := 0, -1
	unread, err := procfs.WalkOpenFiles(ctx, []int{p.PID, other}, func(o procfs.OpenFile) {
		if n++; o.Name == file {
			before = n
			cancel() // As if the time of the walk were over.
		}
	})
	if before < 0 || before > 10000 {
		t.Errorf("the file of the other process is found after %d files", before)
	}
	if !errors.Is(err, context.Canceled) || unread == 0 && n > 10000 {
		t.Errorf("it reports %d unread, %v", unread, err)
	}
	var largest uint64
	n = 0
	began := time.Now()
	if _, err := procfs.WalkOpenFiles(t.Context(), []int{p.PID}, func(procfs.OpenFile) {
		if n++; n%50000 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			largest = max(largest, m.HeapAlloc)
		}
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d descriptors are read in %v, with at most %d MiB of heap", n, time.Since(began), largest>>20)
	if n < 10000 {
		t.Skipf("the limits of this host allow %d descriptors only", n)
	}
	if largest > 64<<20 {
		t.Errorf("%d descriptors need %d MiB", n, largest>>20)
	}
}

// A socket is found behind very many descriptors, and the search ends.
func TestSocketUsersBehindManyDescriptors(t *testing.T) {
	tracing.Run(t, hostile.Command(t, hostile.Descriptors, 1<<20))
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil {
		t.Fatal(err)
	}
	users, err := procfs.SocketUsers(t.Context(), st.Ino)
	if err != nil || len(users) != 1 || users[0].PID != os.Getpid() {
		t.Errorf("its users are %+v, %v", users, err)
	}
}

func TestManyThreads(t *testing.T) {
	const n = 3000
	p := tracing.Run(t, hostile.Command(t, hostile.Threads, n))
	var threads []procfs.Thread
	var err error
	cost := allocated(func() { threads, err = procfs.Threads(p.PID) })
	if err != nil || len(threads) < n {
		t.Errorf("%d threads, %v", len(threads), err)
	}
	t.Logf("%d threads: %d KiB allocated", len(threads), cost>>10)
}
