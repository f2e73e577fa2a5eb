package exits

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

func TestMain(m *testing.M) {
	if os.Getenv("EXITS_EXEC") != "" {
		becomeShell()
	}
	goleak.VerifyTestMain(m)
}

// The first thread stays with the main goroutine.
func init() { runtime.LockOSThread() }

func running(t *testing.T) *Listener {
	t.Helper()
	l := listening(t)
	run(t, l)
	return l
}

// listening returns a listener that receives nothing before run.
func listening(t *testing.T) *Listener {
	t.Helper()
	l, err := Listen()
	if errors.Is(err, unix.EPERM) {
		t.Skip("listening to the ends of processes needs root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func run(t *testing.T, l *Listener) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The end of a grandchild is reported, whose parent is a shell, like the command of a lease.
func TestResultOfAProcessThatIsNoChild(t *testing.T) {
	l := running(t)
	for _, c := range []struct {
		script string
		want   string
	}{{"exit 3", "exited 3"}, {"exit 0", "exited 0"}, {"kill -KILL $$", "killed killed"}, {"(exit 7) & wait; exit 5", "exited 5"}} {
		// The shell prints its child's pid; the child ends when its input does.
		cmd := exec.Command("sh", "-c", `sh -c 'read -r x; `+c.script+`' <&3 & echo $!; exec 3<&-; wait`)
		in, out := pipe(t, cmd)
		pid := 0
		if _, err := fmt.Fscan(out, &pid); err != nil {
			t.Fatal(err)
		}
		start, err := procfs.Start(pid)
		if err != nil {
			t.Fatal(err)
		}
		l.Follow(pid, start)
		if _, _, ok := l.Result(ended(), pid, start); ok {
			t.Fatalf("%s: it still runs, but has a result", c.script)
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		status, at, ok := l.Result(ctx, pid, start)
		cancel()
		if got := text(status); !ok || got != c.want || time.Since(at) > time.Minute {
			t.Errorf("%s: %s at %v (known: %v), want %s", c.script, got, at, ok, c.want)
		}
		l.Forget(pid, start)
		if _, _, ok := l.Result(ended(), pid, start); ok {
			t.Errorf("%s: forgotten, but it has a result", c.script)
		}
		_ = cmd.Wait()
	}
}

// A Go program calls execve from any of its threads: then the first one ends alone, with 0, and the process goes on.
func TestExecByAnotherThread(t *testing.T) {
	t.Run("as it happens", func(t *testing.T) { execByAnotherThread(t, false) })
	// On a busy host both ends are received after the process has ended.
	t.Run("late", func(t *testing.T) { execByAnotherThread(t, true) })
}

func execByAnotherThread(t *testing.T, late bool) {
	l := listening(t)
	if !late {
		run(t, l)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "EXITS_EXEC=1")
	in, out := pipe(t, cmd)
	line := bufio.NewReader(out)
	next := func(want string) {
		t.Helper()
		if got, err := line.ReadString('\n'); err != nil || got != want+"\n" {
			t.Fatalf("%q %v, want %q", got, err, want)
		}
	}
	next("ready")
	pid := cmd.Process.Pid
	start, err := procfs.Start(pid)
	if err != nil {
		t.Fatal(err)
	}
	l.Follow(pid, start)
	l.Follow(pid, start) // Once is enough.
	if _, err := in.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	next("executed")
	if status, _, ok := l.Result(ended(), pid, start); ok {
		t.Fatalf("it runs, but %s", text(status))
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if late {
		run(t, l)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if status, _, ok := l.Result(ctx, pid, start); !ok || text(status) != "exited 4" {
		t.Errorf("%s (known: %v), want exited 4", text(status), ok)
	}
	if _, _, ok := l.Result(ctx, pid, start+1); ok {
		t.Error("another process with the same pid has the result")
	}
}

// becomeShell is the program of TestExecByAnotherThread.
func becomeShell() {
	fmt.Println("ready")
	if _, err := os.NewFile(3, "input").Read(make([]byte, 2)); err != nil {
		os.Exit(1)
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // The main goroutine keeps the first thread.
		failed <- unix.Exec("/bin/sh", []string{"sh", "-c", "echo executed; read -r x <&3; exit 4"}, os.Environ())
	}()
	fmt.Fprintln(os.Stderr, <-failed)
	os.Exit(1)
}

func TestNoListener(t *testing.T) {
	var l *Listener
	l.Follow(1, 1)
	l.Forget(1, 1)
	if _, _, ok := l.Result(t.Context(), 1, 1); ok || l.Run(t.Context()) != nil {
		t.Error("without a listener nothing is known")
	}
}

// pipe starts a command with descriptor 3 as its input and returns both ends.
func pipe(t *testing.T, cmd *exec.Cmd) (in *os.File, out io.Reader) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{r}
	out, err = cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return w, out
}

// ended is a context that has ended: the result is known now, or not at all.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func text(s unix.WaitStatus) string {
	if s.Signaled() {
		return "killed " + s.Signal().String()
	}
	return fmt.Sprintf("exited %d", s.ExitStatus())
}
