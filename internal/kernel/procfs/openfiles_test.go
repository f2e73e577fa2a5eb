package procfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/silentfs"
)

// keepOpen starts a process that has a file open.
func keepOpen(t *testing.T, f *os.File) (pid int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// walked returns the open files of one process, by name.
func walked(t *testing.T, pid int) (files map[string]procfs.OpenFile, unread int) {
	t.Helper()
	files = map[string]procfs.OpenFile{}
	unread, err := procfs.WalkOpenFiles(t.Context(), []int{pid}, func(o procfs.OpenFile) { files[o.Name] = o })
	if err != nil {
		t.Fatal(err)
	}
	return files, unread
}

func TestWalkOpenFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "open-elsewhere")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	pid := keepOpen(t, f)
	if files, unread := walked(
		t,
		pid,
	); unread != 0 ||
		files[file] != (procfs.OpenFile{PID: pid, Name: file, Dev: st.Dev, Ino: st.Ino, FD: "3"}) {
		t.Errorf("found %+v, %d unread", files, unread)
	}
	full, err := os.Open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	pid = keepOpen(t, full)
	files, _ := walked(t, pid)
	if f := files["/dev/full"]; f.Type != 'c' || f.Rdev != unix.Mkdev(1, 7) || f.OnlyNamed() {
		t.Errorf("a device is found as %+v", f)
	}
	named, err := os.OpenFile("/dev/full", unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	pid = keepOpen(t, named)
	files, _ = walked(t, pid)
	if f := files["/dev/full"]; f.Type != 'c' || !f.OnlyNamed() {
		t.Errorf("the path of a device is found as %+v", f)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := procfs.WalkOpenFiles(
		over, []int{pid}, func(procfs.OpenFile) { t.Error("it continued after the end of its context") },
	); err == nil {
		t.Error("it returned no error, although its context had ended")
	}
}

// A device is found by its number, whatever the name of its node, and when the node was removed.
func TestOpenDeviceUnderAnotherName(t *testing.T) {
	node := filepath.Join(t.TempDir(), "harmless.txt")
	if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))); err != nil {
		t.Skipf("needs the right to make device nodes: %v", err)
	}
	f, err := os.Open(node)
	if err != nil {
		t.Skipf("needs a directory without nodev: %v", err)
	}
	defer f.Close()
	if err := os.Remove(node); err != nil {
		t.Fatal(err)
	}
	files, _ := walked(t, keepOpen(t, f))
	if o := files[node+" (deleted)"]; o.Type != 'c' || o.Rdev != unix.Mkdev(1, 7) {
		t.Errorf("found %+v", files)
	}
}

// belowALongPath returns a directory whose path is longer than a page, for which the kernel gives no name.
func belowALongPath(t *testing.T) (dir *os.File) {
	t.Helper()
	at, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 250)
	for range 4*os.Getpagesize()/(len(name)+1) + 1 { // PATH_MAX, where that is more than a page
		if err := unix.Mkdirat(int(at.Fd()), name, 0o700); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Openat(int(at.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		at.Close()
		at = os.NewFile(uintptr(fd), name)
	}
	t.Cleanup(func() { at.Close() })
	if _, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", at.Fd())); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Fatalf("the name of the directory is read: %v", err)
	}
	return at
}

// A file whose path is too long for the kernel is found without its name: it keeps no walk from being complete, and hides no device.
func TestOpenFileWithALongPath(t *testing.T) {
	dir := belowALongPath(t)
	fd, err := unix.Openat(int(dir.Fd()), "file", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "file")
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	pid := keepOpen(t, f)
	if files, unread := walked(t, pid); unread != 0 || files[""] != (procfs.OpenFile{PID: pid, Dev: st.Dev, Ino: st.Ino, FD: "3"}) {
		t.Errorf("found %+v, %d unread", files, unread)
	}
	if err := unix.Mknodat(int(dir.Fd()), "node", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))); err != nil {
		t.Skipf("needs the right to make device nodes: %v", err)
	}
	fd, err = unix.Openat(int(dir.Fd()), "node", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs a directory without nodev: %v", err)
	}
	node := os.NewFile(uintptr(fd), "node")
	defer node.Close()
	if files, unread := walked(t, keepOpen(t, node)); unread != 0 || files[""].Type != 'c' || files[""].Rdev != unix.Mkdev(1, 7) {
		t.Errorf("a device is found as %+v, %d unread", files[""], unread)
	}
}

// A file on a file system that does not answer delays no walk, and hides no device: neither one next to it nor one on it.
func TestFileSystemThatDoesNotAnswer(t *testing.T) {
	for _, tt := range []struct {
		name string
		rdev uint64
	}{{"file", 0}, {"device", unix.Mkdev(1, 7)}} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			fs, err := silentfs.Mount(dir, "nvidia0", tt.rdev)
			if err != nil {
				t.Skipf("needs root and FUSE: %v", err)
			}
			path := filepath.Join(dir, "nvidia0")
			f, err := fs.Open()
			if err != nil {
				t.Fatal(err, fs.Close())
			}
			pid := keepOpen(t, f)
			f.Close()
			fs.Silence()
			type result struct {
				files  map[string]procfs.OpenFile
				unread int
			}
			done := make(chan result, 1)
			go func() {
				files, unread := walked(t, pid)
				done <- result{files, unread}
			}()
			select {
			case r := <-done:
				if o, ok := r.files[path]; !ok || o.Rdev != tt.rdev || r.unread != 0 || r.files["/dev/null"].Type != 'c' {
					t.Errorf("found %+v, %d unread", r.files, r.unread)
				}
			case <-time.After(5 * time.Second):
				t.Error("the walk waits for the file system")
			}
			if err := fs.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWalkOfAllProcesses(t *testing.T) {
	pids, err := procfs.PIDs()
	if err != nil {
		t.Fatal(err)
	}
	seen := []int{}
	if _, err := procfs.WalkOpenFiles(t.Context(), pids, func(o procfs.OpenFile) { seen = append(seen, o.PID) }); err != nil ||
		!slices.Contains(seen, os.Getpid()) {
		t.Errorf("the test itself is not found: %v, %v", seen, err)
	}
}

func BenchmarkWalkOpenFiles(b *testing.B) {
	pids, err := procfs.PIDs()
	if err != nil {
		b.Fatal(err)
	}
	files := 0
	for b.Loop() {
		files = 0
		if _, err := procfs.WalkOpenFiles(b.Context(), pids, func(procfs.OpenFile) { files++ }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(files), "files")
}
