package stop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/silentfs"
	"github.com/gpushare/gpushare/test/tracing"
)

// waits starts a process of a user in a scope that does a call in a file system which never answers, and waits until the server has its request.
func waits(t *testing.T, tree *cgroup.Tree, fs *silentfs.Server, uid int, call, path string) tracing.Program {
	t.Helper()
	cmd := tracing.Command(t, uid, "")
	cmd.Env = []string{silentfs.Environment(silentfs.Wait, call, path), "GOMAXPROCS=4"}
	p := tracing.Run(t, cmd)
	if _, err := tree.StartScope(
		t.Context(),
		cgroup.Scope{ID: "one", Slice: cgroup.SliceName{Tenant: "red", Grant: "part"}, Process: cgroup.Process{PID: p.PID, Start: p.Start}},
	); err != nil {
		t.Fatal(err)
	}
	fs.AwaitSilent(t)
	return p
}

// acts records what is done to a file system and its servers.
type acts struct {
	mu   sync.Mutex // guards text
	text []string
}

func (a *acts) add(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = append(a.text, text)
}

func (a *acts) scope(tree *cgroup.Tree) *scope {
	return &scope{port: tree, id: "one", log: slog.New(slog.DiscardHandler), watcher: watcher{stopped: a.add, aborted: a.add}}
}

// A process that a file system of its user keeps ends all the same, whatever it waits with: the connection is aborted, and its server
// stopped, wherever it runs.
func TestFileSystemsAreAborted(t *testing.T) {
	enumeration.Long(t)
	for _, c := range []struct{ name, call, file string }{
		{"a look-up", silentfs.Stat, silentfs.Lost},
		{"an open", silentfs.Open, silentfs.Sealed},
		{"a read", silentfs.Read, silentfs.Direct},
		{"an execve", silentfs.Exec, silentfs.Sealed},
		{"a change of the directory", silentfs.Chdir, "."},
		{"a look-up through a link, which names another file system", silentfs.Stat, "link"},
		{"twenty threads, of which most wait for a lock", silentfs.Threads, silentfs.Lost},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			uid, tree := asUser(t), treeOf(t)
			if c.file == "link" {
				uid += 10 // Which of its user's file systems it waits for is not known: those of other tests are of another user.
			}
			fs := silentfs.Start(t, uid)
			path := fs.Path(c.file)
			if c.file == "link" {
				path = filepath.Join(linkTo(t, fs.Dir), silentfs.Lost)
			}
			p := waits(t, tree, fs, uid, c.call, path)
			t.Cleanup(fs.Stop)
			numbered := fs.Numbered(t)
			var did acts
			if err := did.scope(tree).Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-p.Ended
			text := strings.Join(did.text, "\n")
			wants := []string{
				fmt.Sprintf("the FUSE file system at %s (connection ", fs.Dir),
				fmt.Sprintf("is aborted: pid %d (", p.PID),
				"which was killed, waits for it",
			}
			if numbered {
				<-fs.Ended
				wants = append(
					wants, fmt.Sprintf(") of uid %d, served by pid %d (", uid, fs.PID),
					fmt.Sprintf(" of uid %d is aborted: pid %d (", uid, p.PID), "is stopped: it serves the FUSE file system at "+fs.Dir,
				)
			} else { // The servers of the other tests are named too.
				wants = append(wants, fmt.Sprintf(") of uid %d, which may be served by pid ", uid))
				if strings.Contains(text, "is stopped") {
					t.Errorf("a process was stopped of which the kernel does not tell what it serves:\n%s", text)
				}
			}
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("what was done does not say %q:\n%s", want, text)
				}
			}
		})
	}
}

// linkTo returns a symbolic link to a directory, which everybody reaches.
func linkTo(t *testing.T, dir string) string {
	t.Helper()
	own, err := os.MkdirTemp("", "link")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(own) }) // It is below the host's temporary directory.
	if err := os.Chmod(own, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(own, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// A process that waits in a page fault ends too. Linux before 6.2 waits for the flush of its open file in its exit.
func TestAFaultOfAMappedFile(t *testing.T) {
	t.Parallel()
	uid, tree := asUser(t), treeOf(t)
	fs := silentfs.Start(t, uid)
	p := waits(t, tree, fs, uid, silentfs.Fault, fs.Path(silentfs.Cached))
	t.Cleanup(fs.Stop)
	var did acts
	if err := did.scope(tree).Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-p.Ended
}

// It does not matter what the server does: it may be stopped, or be traced by one that keeps it in its exit.
func TestServersThatAreKept(t *testing.T) {
	t.Run("a server that is stopped", func(t *testing.T) {
		t.Parallel()
		uid, tree := asUser(t), treeOf(t)
		fs := silentfs.Start(t, uid)
		p := waits(t, tree, fs, uid, silentfs.Stat, fs.Path(silentfs.Lost))
		t.Cleanup(fs.Stop)
		numbered := fs.Numbered(t)
		if err := syscall.Kill(fs.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var did acts
		if err := did.scope(tree).Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-p.Ended
		if numbered {
			<-fs.Ended
		}
	})
	t.Run("a server that is traced", func(t *testing.T) {
		t.Parallel()
		uid, tree := asUser(t), treeOf(t)
		fs := silentfs.Start(t, uid)
		p := waits(t, tree, fs, uid, silentfs.Stat, fs.Path(silentfs.Lost))
		t.Cleanup(fs.Stop)
		// It keeps the server in its exit, where its connection is open.
		tracing.Run(t, tracing.Command(t, uid, tracing.Trace, append(tracing.Others(t, fs.PID), fs.PID)...))
		var did acts
		if err := did.scope(tree).Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-p.Ended
	})
}

// A file system of root or of another user is not aborted, and its server not stopped. The stop ends in time and names both, with a
// command that helps.
func TestFileSystemsThatAreKept(t *testing.T) {
	enumeration.Long(t)
	for _, c := range []struct {
		name  string
		owner int
		want  string
	}{
		{"of root", 0, "of root, served by pid %d (%s) of root: it is not aborted, because it belongs to root"},
		{"of another user", 54322, "of uid 54322, served by pid %d (%s) of uid 54322: it is not aborted, because it belongs to another user"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			uid, tree := asUser(t), treeOf(t)
			fs := silentfs.Start(t, c.owner)
			p := waits(t, tree, fs, uid, silentfs.Stat, fs.Path(silentfs.Lost))
			t.Cleanup(fs.Stop)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			var did acts
			err := did.scope(tree).Kill(ctx)
			alive, ok := errors.AsType[*AliveError](err)
			if !ok || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("it returned %v", err)
			}
			want := fmt.Sprintf(c.want, fs.PID, procfs.Name(fs.PID))
			if !fs.Numbered(t) {
				_, want, _ = strings.Cut(want, ": ") // Those that may serve it are named.
			}
			if text := alive.Error(); !strings.Contains(text, want) || !strings.Contains(text, "of "+fs.Path(silentfs.Lost)) ||
				!strings.Contains(text, "at "+fs.Dir) {
				t.Errorf("it says %q, want %q", text, want)
			}
			if hint := alive.Hint(); !strings.HasPrefix(hint, "end its requests: '") || !strings.HasSuffix(hint, "/abort'") {
				t.Errorf("the hint is %q", hint)
			}
			if len(did.text) != 0 {
				t.Errorf("it did %q", did.text)
			}
			select {
			case <-fs.Ended:
				t.Error("the server was stopped")
			default:
			}
			// Its hint helps: once the connection ends, so does the process.
			_, command, _ := strings.Cut(strings.TrimSuffix(alive.Hint(), "'"), "'")
			if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", command).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", command, err, out)
			}
			<-p.Ended
		})
	}
}

// A process of the user has a file open that has the name of the device and is on a file system that never answers: no request goes to
// it, so no thread of this program waits for it. Its server is another user's, so it is not found.
func TestFilesWithTheNameOfTheDeviceAreNotQueried(t *testing.T) {
	uid, tree := asUser(t), treeOf(t)
	uid += 20
	trap := filepath.Join(t.TempDir(), "dev")
	if err := os.Mkdir(trap, 0o755); err != nil {
		t.Fatal(err)
	}
	silent, err := silentfs.Mount(trap, "fuse", 0)
	if err != nil {
		t.Skipf("needs root and FUSE: %v", err)
	}
	file, err := silent.Open()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.Command("sleep", "600")
	program.ExtraFiles = []*os.File{file}
	program.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	silent.Silence()
	t.Cleanup(func() {
		_ = silent.Close() // Then the file can be closed.
		file.Close()
		_ = program.Process.Kill()
		_ = program.Wait() // A signal ends it.
	})
	dir, conn := silentfs.Mounted(t, uid)
	server := tracing.Command(t, uid+1, "")
	server.Env = []string{silentfs.Environment(silentfs.Serve, dir, "0", "3")}
	server.ExtraFiles = []*os.File{conn}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() }) // A signal ends it.
	conn.Close()
	says := bufio.NewReader(out)
	await := func(want string) {
		t.Helper()
		if line, err := says.ReadString('\n'); line != want+"\n" {
			t.Fatalf("the server says %q, %v", line, err)
		}
	}
	await("serves")
	cmd := tracing.Command(t, uid, "")
	cmd.Env = []string{silentfs.Environment(silentfs.Wait, silentfs.Stat, filepath.Join(dir, silentfs.Lost)), "GOMAXPROCS=4"}
	p := tracing.Run(t, cmd)
	if _, err := tree.StartScope(
		t.Context(),
		cgroup.Scope{ID: "one", Slice: cgroup.SliceName{Tenant: "red", Grant: "part"}, Process: cgroup.Process{PID: p.PID, Start: p.Start}},
	); err != nil {
		t.Fatal(err)
	}
	await("silent")
	var did acts
	if err := did.scope(tree).Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-p.Ended
	if text := strings.Join(did.text, "\n"); !strings.Contains(text, "is aborted") || strings.Contains(text, "is stopped") {
		t.Errorf("it did %s", text)
	}
	threads, err := procfs.Threads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if w := procfs.ReadWait(os.Getpid(), thread.TID); thread.State == 'D' && w.Function == "request_wait_answer" {
			t.Errorf("a thread of this program waits: %+v", w)
		}
	}
}

// A file system of the same user that answers is not aborted, although it is busy while a process of the user is stopped.
func TestOtherFileSystemsAreKept(t *testing.T) {
	t.Parallel()
	uid, tree := asUser(t), treeOf(t)
	idle := silentfs.Start(t, uid)
	fs := silentfs.Start(t, uid)
	p := waits(t, tree, fs, uid, silentfs.Stat, fs.Path(silentfs.Lost))
	t.Cleanup(fs.Stop)
	var did acts
	if err := did.scope(tree).Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-p.Ended
	var st unix.Stat_t
	if err := unix.Lstat(idle.Path(silentfs.Sealed), &st); err != nil {
		t.Errorf("another file system of the user ended: %v", err)
	}
}

func TestWhyConnectionKept(t *testing.T) {
	t.Parallel()
	own := users{list: []uint32{1000, 1001}, ranges: [][2]uint32{{1000, 1000}, {100000, 165535}}}
	for _, c := range []struct {
		name  string
		owner uint32
		of    users
		want  string
	}{
		{"the same user", 1000, own, ""},
		{"one of its user ids", 1001, own, ""},
		{"one that its user namespace maps", 100005, own, ""},
		{"another user", 1002, own, "it belongs to another user"},
		{"root", 0, own, "it belongs to root"},
		{"root, for a process of root", 0, users{list: []uint32{0}}, "it belongs to root"},
		{"a user, for a process of root", 1000, users{list: []uint32{0}}, "it belongs to another user"},
		{"of a process that exits", 1000, users{}, "it belongs to another user"},
	} {
		if got := whyConnectionKept(c.owner, c.of); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
