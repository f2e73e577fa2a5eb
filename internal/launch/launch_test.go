package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/programs"

	"github.com/gpushare/gpushare/test/leftover"
)

// The test binary is also gpushare-start.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 1:
		os.Exit(Exec(false))
	case os.Args[1] == SupervisedFlag:
		os.Exit(Exec(true))
	case os.Args[1] == "--supervise":
		kept, err := strconv.ParseInt(os.Args[4], 10, 64)
		if err != nil {
			os.Exit(2)
		}
		os.Exit(Supervise(os.Args[2], os.Args[3], kept, len(os.Args) == 6))
	case os.Args[1] == confinedFlag:
		confinedCaller(os.Args[2], os.Args[3])
	}
	os.Exit(leftover.Main(m))
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func supervisors(t *testing.T) *Supervisors {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &Supervisors{Dir: filepath.Join(t.TempDir(), "output"), Program: self}
}

// shellProgram is a shell script as a program with the credentials of the test.
func shellProgram(t *testing.T, script string) *Program {
	t.Helper()
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	o, err := CredentialsOf(me, os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	o.UID, o.GID = os.Getuid(), os.Getgid()
	return &Program{
		Path:        "/bin/sh",
		Argv:        []string{"sh", "-c", script},
		Env:         []string{"PATH=/usr/bin:/bin", "WHO=tenant"},
		Dir:         "/tmp",
		UMask:       0o027,
		Credentials: o,
	}
}

// begin starts the program.
func begin(t *testing.T, k *Supervisors, id string, p *Program) error {
	t.Helper()
	return beginWith(t, k, id, 0, p)
}

// beginWith starts the program, of whose output so many bytes are kept.
func beginWith(t *testing.T, k *Supervisors, id string, kept int64, p *Program) error {
	t.Helper()
	w, err := k.Start(deadline(t), id, Cgroups{}, kept)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	main, err := k.Main(id)
	if err != nil || main != w.Process {
		t.Errorf("the record has %+v (%v), it is %+v", main, err, w.Process)
	}
	return w.Start(deadline(t), p)
}

func output(t *testing.T, k *Supervisors, id string, lines int) string {
	t.Helper()
	var b bytes.Buffer
	if err := k.Output(deadline(t), id, lines, nil, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestExecsTheProgram(t *testing.T) {
	t.Parallel()
	k := supervisors(t)
	if err := begin(
		t,
		k,
		"a",
		shellProgram(
			t,
			`echo "$WHO $(pwd) $(umask) $(ulimit -n) ${PATH}"; readlink /proc/self/fd/0; ls /proc/self/fd | wc -l; echo bad >&2; cut -d ' ' -f 6 /proc/$$/stat; echo $$; exit 7`,
		),
	); err != nil {
		t.Fatal(err)
	}
	r, err := k.Result(deadline(t), "a")
	if err != nil || !r.Exited || r.Code != 7 || r.String() != "exited with 7" {
		t.Errorf("it ended as %+v: %v", r, err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	openFiles := parseLimits(string(text))[unix.RLIMIT_NOFILE].Cur
	lines := strings.Split(output(t, k, "a", -1), "\n")
	if want := fmt.Sprintf("tenant /tmp 0027 %d /usr/bin:/bin", openFiles); lines[0] != want {
		t.Errorf("it printed %q, want %q", lines[0], want)
	}
	if lines[1] != "/dev/null" || lines[2] != "4" { // 0, 1, 2 and the one for listing
		t.Errorf("it has the input %s and %s descriptors", lines[1], lines[2])
	}
	if lines[3] != "bad" || lines[4] != lines[5] {
		t.Errorf("its errors, session and pid: %q", lines[3:])
	}
}

func TestWhyItCannotBeStarted(t *testing.T) {
	dir := t.TempDir()
	plain, script := filepath.Join(dir, "plain"), filepath.Join(dir, "script")
	if err := errors.Join(os.WriteFile(plain, []byte("x"), 0o644), programs.Write(script, "echo\n")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(p *Program)
		code   int
		want   string
	}{
		{"not there", func(p *Program) { p.Path = "/no/such/program" }, 127, "cannot run /no/such/program: no such file or directory"},
		{"not executable", func(p *Program) { p.Path = plain }, 126, "permission denied"},
		{"a directory", func(p *Program) { p.Path = dir }, 126, "permission denied"},
		{"no first line", func(p *Program) { p.Path = script }, 126, "first line"},
		{"no such directory", func(p *Program) { p.Dir = "/no/such/directory" }, 126, "cannot start in /no/such/directory: no such file"},
		{"a relative path", func(p *Program) { p.Path = "sh" }, 126, "not absolute"},
		{"other mounts", func(p *Program) { p.Credentials.Confinement.Namespaces["mnt"] = "mnt:[1]" }, 126, "mount namespace"},
		{"a bad environment", func(p *Program) { p.Env = []string{"=x"} }, 126, "NAME=value"},
		{"a zero byte", func(p *Program) { p.Argv = []string{"a\x00b"} }, 126, "zero byte"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := supervisors(t)
			p := shellProgram(t, "echo ran")
			c.change(p)
			err := begin(t, k, "a", p)
			f, ok := errors.AsType[*Failure](err)
			if !ok || f.Code != c.code || !strings.Contains(f.Message, c.want) {
				t.Fatalf("got %v, want %d and %q", err, c.code, c.want)
			}
			if r, err := k.Result(deadline(t), "a"); err != nil || r.Code != c.code {
				t.Errorf("the result is %+v: %v", r, err)
			}
			if got := output(t, k, "a", -1); got != "" {
				t.Errorf("it printed %q", got)
			}
		})
	}
}

// Root starts programs of other users: with their credentials, and nothing of root's.
func TestExecsAsAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("to run as another user needs root")
	}
	k := supervisors(t)
	p := shellProgram(
		t,
		"id -u; id -g; id -G; grep -E '^(CapEff|CapPrm|CapInh|CapAmb|NoNewPrivs)' /proc/self/status | tr '\n' ' '; ulimit -n; cat /proc/self/oom_score_adj",
	)
	p.Credentials.UID, p.Credentials.GID, p.Credentials.Groups, p.Credentials.OOMScore = 65534, 65533, []int{4711, 4712}, 42
	p.Credentials.Limits = map[int]Limit{unix.RLIMIT_NOFILE: {100, 200}}
	if err := begin(t, k, "a", p); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Result(deadline(t), "a"); err != nil {
		t.Fatal(err)
	}
	const none = "0000000000000000"
	want := "65534\n65533\n65533 4711 4712\nCapInh:\t" + none + " CapPrm:\t" + none + " CapEff:\t" + none + " CapAmb:\t" + none + " NoNewPrivs:\t0 100\n42\n"
	if got := output(t, k, "a", -1); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Without a message of the daemon no program runs: the daemon was killed in between.
func TestEndsWithoutAProgram(t *testing.T) {
	t.Parallel()
	k := supervisors(t)
	w, err := k.Start(deadline(t), "a", Cgroups{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if r, err := k.Result(deadline(t), "a"); err != nil || r.Code != ExitWaiting {
		t.Errorf("it ended as %+v: %v", r, err)
	}
}

// A signal to the supervisor's group does not end the program, and killing the supervisor only costs the output.
func TestSupervisorIgnoresSignals(t *testing.T) {
	t.Parallel()
	k := supervisors(t)
	if err := begin(t, k, "a", shellProgram(t, "exec sleep 60")); err != nil {
		t.Fatal(err)
	}
	r, err := k.record("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGKILL} {
		if err := syscall.Kill(r.Supervisor.PID, sig); err != nil {
			t.Fatalf("the supervisor ended before %v: %v", sig, err)
		}
	}
	if !procfs.Alive(r.Main.PID, r.Main.Start) {
		t.Error("the program ended with its supervisor")
	}
	if err := syscall.Kill(r.Main.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Result(deadline(t), "a"); !errors.Is(err, ErrUnknown) {
		t.Errorf("the result is not known, and Result returns %v", err)
	}
}

// A follower gets all that is written until the end, also across rotations.
func TestFollowsTheOutput(t *testing.T) {
	t.Parallel()
	k := supervisors(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := begin(
		t, k, "a", shellProgram(t, "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); done; read x < "+fifo+"; echo last"),
	); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	pipe := &lines{more: make(chan struct{})}
	var follow sync.WaitGroup
	follow.Go(func() {
		if err := k.Output(deadline(t), "a", -1, ended, pipe); err != nil {
			t.Error(err)
		}
	})
	pipe.await(t, "line 299\n")
	if err := k.Note("a", "gpushare: a notice"); err != nil {
		t.Fatal(err)
	}
	pipe.await(t, "a notice\n")
	if err := os.WriteFile(fifo, []byte("on\n"), 0); err != nil {
		t.Fatal(err)
	}
	if r, err := k.Result(deadline(t), "a"); err != nil || r.Code != 0 {
		t.Errorf("it ended as %+v: %v", r, err)
	}
	close(ended)
	follow.Wait()
	if got := pipe.String(); !strings.HasSuffix(got, "\nline 299\ngpushare: a notice\nlast\n") ||
		!strings.HasPrefix(got, "line 0\nline 1\n") {
		t.Errorf("the follower saw %q", got)
	}
	if got := output(t, k, "a", 2); got != "gpushare: a notice\nlast\n" {
		t.Errorf("the last two lines are %q", got)
	}
	k.Prune(func(string) bool { return false })
	if left, err := os.ReadDir(k.Dir); err != nil || len(left) > 0 {
		t.Errorf("pruning leaves %v: %v", left, err)
	}
}

// A program that prints without end fills no more than it may: two files, and one read beyond each.
func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	const kept = 256 << 10
	k := supervisors(t)
	if err := beginWith(t, k, "a", kept, shellProgram(t, "head -c 4000000 /dev/zero | tr '\\0' x; echo; echo last")); err != nil {
		t.Fatal(err)
	}
	if r, err := k.Result(deadline(t), "a"); err != nil || r.Code != 0 {
		t.Fatalf("it ended as %+v: %v", r, err)
	}
	if n := k.Size("a"); n < kept/2 || n > kept+64<<10 {
		t.Errorf("%d bytes are kept, want %d at most", n, kept)
	}
	if got := output(t, k, "a", 1); got != "last\n" {
		t.Errorf("the last line is %q", got)
	}
	if n := k.Size("other"); n != 0 {
		t.Errorf("the output of no program has %d bytes", n)
	}
}

// The two files contain the last output, and a reader joins them.
func TestRotatingFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "ring")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		r, err := newRotatingFile(outputPath(dir, "a"), 64)
		if err != nil {
			t.Fatal(err)
		}
		all := ""
		for i := range rapid.IntRange(0, 40).Draw(t, "lines") {
			line := strings.Repeat(string(rune('a'+i%26)), rapid.IntRange(0, 20).Draw(t, "length")) + "\n"
			all += line
			r.fill(strings.NewReader(line))
		}
		r.Close()
		k := &Supervisors{Dir: dir}
		var got bytes.Buffer
		if err := k.Output(context.Background(), "a", -1, nil, &got); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(all, got.String()) || got.Len() < min(len(all), 64) || got.Len() > 64+64+21 {
			t.Fatalf("kept %d of %d bytes: %q", got.Len(), len(all), got.String())
		}
		n := rapid.IntRange(0, 12).Draw(t, "last")
		var last bytes.Buffer
		if err := k.Output(context.Background(), "a", n, nil, &last); err != nil {
			t.Fatal(err)
		}
		supervised := strings.SplitAfter(got.String(), "\n")
		supervised = supervised[:len(supervised)-1]
		if want := strings.Join(supervised[max(0, len(supervised)-n):], ""); last.String() != want {
			t.Fatalf("the last %d lines are %q, want %q", n, last.String(), want)
		}
	})
}

func TestLimitsAreRead(t *testing.T) {
	b, err := exec.CommandContext(deadline(t), "sh", "-c", "ulimit -S -n 77; ulimit -S -c 0; cat /proc/self/limits").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := parseLimits(string(b))
	if got[unix.RLIMIT_NOFILE].Cur != 77 || got[unix.RLIMIT_CORE].Cur != 0 || len(got) != 16 {
		t.Errorf("%d limits: %v", len(got), got)
	}
}

// lines collects what is written.
type lines struct {
	mu   sync.Mutex // guards what follows
	b    bytes.Buffer
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.more)
	l.more = make(chan struct{})
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	ctx := deadline(t)
	for {
		l.mu.Lock()
		more, got := l.more, l.b.String()
		l.mu.Unlock()
		if strings.Contains(got, text) {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("%q does not arrive: %q", text, got)
		}
	}
}

// TestStandardInputIsDuplicated: a service manager keeps the connection that it gave as the standard input for as long as the
// unit exists.
func TestStandardInputIsDuplicated(t *testing.T) {
	local, remote, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close() // not earlier
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(deadline(t), self)
	cmd.Stdin = remote
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w, err := Await(deadline(t), local)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Start(deadline(t), shellProgram(t, "exit 7")); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("it ended with %v", err)
	}
}
