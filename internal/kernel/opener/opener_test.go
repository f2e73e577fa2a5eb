package opener

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/descent"
)

const user = 64901 // has no other process here

// fileOf is a file as a question names it.
func fileOf(t *testing.T, path string) File {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR {
		return File{Device: Number(unix.Major(st.Rdev), unix.Minor(st.Rdev))}
	}
	return File{Device: Number(unix.Major(st.Dev), unix.Minor(st.Dev)), Ino: st.Ino}
}

// load loads the program. Where what it needs is there, it must load.
func load(t *testing.T, r *Reader) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading a program into the kernel needs root")
	}
	if err := descent.InFirstNamespace(); err != nil {
		t.Skip("needs the pids of the host, and not those of a container: ", err)
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skip("needs a kernel that describes its structures (BTF): ", err)
	}
	if _, err := r.Read(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// The user who opened a file is known, also of one who inherited it. A question names only its own files.
func TestOpener(t *testing.T) {
	var r Reader
	load(t, &r)
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	started := func(name string, files ...*os.File) int {
		t.Helper()
		cmd := exec.Command("sh", "-c", `exec 9<"$1"; echo ready; read -r x`, "sh", name)
		cmd.Dir, cmd.ExtraFiles = "/", files
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			_ = cmd.Wait() // Its input has ended.
		})
		var b [8]byte
		if _, err := out.Read(b[:]); err != nil {
			t.Fatal(err)
		}
		return cmd.Process.Pid
	}
	root, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	named, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	own, onlyNamed := started(path), started("/dev/full", named)
	inherited := started("/dev/full", root)
	for _, tt := range []struct {
		name string
		pid  int
		file File
		uid  []uint32
	}{
		{"opened by its process", own, fileOf(t, path), []uint32{user}},
		{"inherited from root", inherited, fileOf(t, path), []uint32{0}},
		{"its path inherited", onlyNamed, fileOf(t, path), nil},
		{"a device", inherited, fileOf(t, "/dev/full"), []uint32{user}},
		{"a file that it has not open", own, fileOf(t, "/dev/full"), nil},
	} {
		opened, err := r.Read(t.Context(), []File{tt.file})
		if err != nil {
			t.Fatal(err)
		}
		var uids []uint32
		for _, o := range opened {
			if o.File != tt.file {
				t.Errorf("%s: it has %+v", tt.name, o)
			}
			if o.PID == tt.pid {
				uids = append(uids, o.UID)
			}
		}
		if !slices.Equal(uids, tt.uid) {
			t.Errorf("%s: opened by %v, want %v", tt.name, uids, tt.uid)
		}
	}
}

// While a reading does not return, because a user made the close of a file wait, no other one begins.
func TestOneReadingAtATime(t *testing.T) {
	var r Reader
	r.once.Do(func() { r.slot = make(chan struct{}, 1) })
	r.slot <- struct{}{} // as by a reading that does not return
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.Read(ctx, nil); !errors.Is(err, errBusy) {
		t.Errorf("a second reading: %v", err)
	}
}

// A process that has a file open many times is in the answer once.
func TestManyDescriptorsOfAFile(t *testing.T) {
	var r Reader
	load(t, &r)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 1000 {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	for range 2 {
		opened, err := r.Read(t.Context(), []File{fileOf(t, f.Name())})
		if err != nil || len(opened) != 1 || opened[0].PID != os.Getpid() || opened[0].UID != 0 {
			t.Errorf("%+v, %v", opened, err)
		}
	}
}
