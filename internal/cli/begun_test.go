package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/internal/enter"
	"github.com/gpushare/gpushare/test/programs"
)

// asEntering in the environment makes the test binary one of the two programs, by its name.
const asEntering = "GPUSHARE_TEST_ENTERING"

func becomeEntering() (code int, set bool) {
	if _, set := os.LookupEnv(asEntering); !set {
		return 0, false
	}
	self, err := os.Executable()
	if err != nil {
		return 99, true
	}
	switch filepath.Base(self) {
	case "gpushare":
		return enter.Run(os.Args, os.Environ(), os.Stderr), true
	case enter.Program:
		return cli.Run(context.Background(), os.Args[1:], os.Environ(), cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}), true
	}
	return 98, true
}

// installed is a directory with this test binary under the names of programs.
func installed(t *testing.T, names ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range names {
		if os.Link(self, filepath.Join(dir, name)) == nil {
			continue
		}
		b, err := os.ReadFile(self) // It is on another file system.
		if err != nil {
			t.Fatal(err)
		}
		if err := programs.Write(filepath.Join(dir, name), b); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// received are the requests of one run, with the keys apart.
type received struct {
	mu       sync.Mutex // guards the fields
	requests []string
	keys     []string
}

// daemonThat answers requests of leases and records them.
func daemonThat(t *testing.T, answer http.HandlerFunc) (socket string, a *received) {
	t.Helper()
	a = &received{}
	return fakeDaemon(t, routes{"POST /v1/leases": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, err := io.ReadAll(q.Body)
		var r api.LeaseRequest
		if err != nil || json.Unmarshal(b, &r) != nil || q.Host != "gpushare" || q.Header.Get("Content-Type") != "application/json" {
			t.Errorf("the request is %q of %q, %v", b, q.Host, err)
		}
		key := r.Key
		r.Key = ""
		if b, err = json.Marshal(r); err != nil {
			t.Error(err)
		}
		a.mu.Lock()
		a.requests, a.keys = append(a.requests, string(b)), append(a.keys, key)
		a.mu.Unlock()
		answer(w, q)
	})}), a
}

// outcome is what a run does, as its user and the daemon see it.
func outcome(t *testing.T, program string, a *received, env, args []string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(append(os.Environ(), "GPUSHARE_TEST_ENTERING=", "HIDDEN=yes", "CUDA_MPS_PIPE_DIRECTORY=/tmp/x"), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("%d\n%s\n%s\n%s", cmd.ProcessState.ExitCode(), out.String(), errs.String(), strings.Join(a.requests, "\n"))
}

// running is the answer for a lease at once.
func running(more func(*api.LeaseGrant)) http.HandlerFunc {
	g := api.LeaseGrant{
		Lease:       &api.Lease{ID: "red-1", State: api.LeaseRunning},
		Environment: map[string]string{"CUDA_VISIBLE_DEVICES": mig4, "HIDDEN": "no"},
		Unset:       []string{"CUDA_MPS_PIPE_DIRECTORY"},
		Selected:    "grant part of red",
	}
	if more != nil {
		more(&g)
	}
	return emitting(g)
}

const shows = `echo "$CUDA_VISIBLE_DEVICES $HIDDEN ${CUDA_MPS_PIPE_DIRECTORY-unset} ${GPUSHARE_BEGUN-none} $#"; exit 7`

// A run is the same whether the command line requests the lease or gpushare does and leaves the rest to it.
func TestRunIsTheSameInBothPrograms(t *testing.T) {
	t.Parallel()
	refused := &api.Error{Kind: api.KindDenied, Message: "you are no member of red", Hint: "ask for it"}
	long := func(g *api.LeaseGrant) { g.Environment["LONG"] = strings.Repeat("x", 40_000) }
	chunks := func(g *api.LeaseGrant) { g.Environment["LONG"] = strings.Repeat("x", 5_000) }
	reported := func(g *api.LeaseGrant) { g.Lease.GPUMemory = &api.LeaseMemory{Limit: 1 << 30, Backend: "observe"} }
	broken := filepath.Join(t.TempDir(), "script")
	if err := programs.Write(broken, "echo no\n"); err != nil {
		t.Fatal(err)
	}
	sh := []string{"sh", "-c", shows}
	run := func(args ...string) []string { return slices.Concat([]string{"run"}, args) }
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		args   []string
		direct bool // gpushare needs no other program
	}{
		"a lease at once":         {running(nil), run(sh...), true},
		"with flags":              {running(nil), run(append([]string{"-q", "-t", "red", "--grant=part", "--kind", "mps", "--wait=1d", "--"}, sh...)...), true},
		"the last flag counts":    {running(nil), run(append([]string{"--tenant=a", "-t", "--", "--quiet"}, sh...)...), true},
		"flags of the command":    {running(nil), run(append(slices.Clone(sh), "-t", "--", "--wait")...), true},
		"an answer in parts":      {running(chunks), run(sh...), true},
		"an empty argument":       {running(nil), run(append(slices.Clone(sh), "", "")...), true},
		"a path":                  {running(nil), run("/bin/sh", "-c", shows), true},
		"a wait in two words":     {running(nil), run(append([]string{"--wait", "3s"}, sh...)...), false},
		"a wait without a value":  {running(nil), run(append([]string{"--wait", "--"}, sh...)...), false},
		"a long answer":           {running(long), run(sh...), false},
		"memory is only reported": {running(reported), run(sh...), false},
		"the same, silently":      {running(reported), run(append([]string{"-q"}, sh...)...), true},
		"warnings":                {running(func(g *api.LeaseGrant) { g.Warnings = []string{"nothing is isolated"} }), run(sh...), false},
		"a queue":                 {granted(), run(append([]string{"--wait=0"}, sh...)...), false},
		"a refusal": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(map[string]any{"error": refused})
		}, run(sh...), false},
		"a refusal in the answer": {emitting(api.LeaseGrant{Error: refused, ExitCode: 126}), run(sh...), false},
		"no such program":         {running(nil), run("no-such-program-here"), false},
		"a script without a name": {running(nil), run(broken), false},
		"no command":              {running(nil), run("-q"), false},
		"an unknown flag":         {running(nil), run("--what", "true"), false},
		"a flag with a sign":      {running(nil), run(append([]string{"-t=red"}, sh...)...), false},
		"a wrong wait":            {running(nil), run("--wait=ever", "true"), false},
		"JSON":                    {running(nil), run(append([]string{"--json"}, sh...)...), false},
		"another command":         {running(nil), []string{"status", "--what"}, false},
		"no arguments":            {running(nil), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			names := []string{"gpushare", enter.Program}
			socket, a := daemonThat(t, c.answer)
			want := outcome(t, filepath.Join(installed(t, names...), enter.Program), a, []string{"GPUSHARE_SOCKET=" + socket}, c.args)
			if c.direct {
				names = names[:1]
			}
			socket, a = daemonThat(t, c.answer)
			got := outcome(t, filepath.Join(installed(t, names...), "gpushare"), a, []string{"GPUSHARE_SOCKET=" + socket}, c.args)
			if got != want {
				t.Errorf("gpushare:\n%s\nthe command line:\n%s", got, want)
			}
			if c.direct && (len(a.requests) != 1 || a.keys[0] == "" || !strings.HasPrefix(got, "7\n")) {
				t.Errorf("%d requests, %q:\n%s", len(a.requests), a.keys, got)
			}
		})
	}
}

// A daemon that goes away after it accepted the request gets it again, for the same lease.
func TestRunThatWasBegunIsSentAgain(t *testing.T) {
	t.Parallel()
	first := true
	socket, a := daemonThat(t, func(w http.ResponseWriter, q *http.Request) {
		if first {
			first = false
			panic(http.ErrAbortHandler)
		}
		running(nil)(w, q)
	})
	got := outcome(t, filepath.Join(installed(t, "gpushare", enter.Program), "gpushare"), a, []string{"GPUSHARE_SOCKET=" + socket},
		[]string{"run", "--wait=1m", "sh", "-c", shows})
	if !strings.HasPrefix(got, "7\n") || !strings.Contains(got, "gpushared went away") || len(a.keys) != 2 || a.keys[0] != a.keys[1] {
		t.Errorf("the keys are %q:\n%s", a.keys, got)
	}
}

// An interrupt ends a run that waits, and with it the request: also when it has waited so long that the command line continues it.
func TestRunThatWasBegunIsInterrupted(t *testing.T) {
	t.Parallel()
	handled := make(chan os.Signal, 1) // A shell ignores the signal for what it starts in the background, and then so do its children.
	signal.Notify(handled, syscall.SIGINT)
	defer signal.Stop(handled)
	waits, ended := make(chan bool, 1), make(chan bool, 1)
	socket, _ := daemonThat(t, func(_ http.ResponseWriter, q *http.Request) {
		waits <- true
		<-q.Context().Done()
		ended <- true
	})
	cmd := exec.CommandContext(t.Context(), filepath.Join(installed(t, "gpushare", enter.Program), "gpushare"), "run", "true")
	cmd.Env = append(os.Environ(), "GPUSHARE_TEST_ENTERING=", "GPUSHARE_SOCKET="+socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-waits
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || w.ExitStatus() != 130 && (!w.Signaled() || w.Signal() != syscall.SIGINT) {
		t.Errorf("it ends with %v", err)
	}
	<-ended
}

// What a user has put into the variable is no connection, and the request is sent as if it were not there.
func TestBegunVariableOfAUser(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "1:key", "-1:key", "0x3:key", "987654:key", "3:", "3", "99999999999:key"} {
		for _, program := range []string{"gpushare", enter.Program} {
			socket, a := daemonThat(t, running(nil))
			got := outcome(t, filepath.Join(installed(t, "gpushare", enter.Program), program), a,
				[]string{"GPUSHARE_SOCKET=" + socket, enter.BegunVariable + "=" + value}, []string{"run", "-q", "sh", "-c", shows})
			if !strings.HasPrefix(got, "7\n") || !strings.Contains(got, " none 0") || len(a.keys) != 1 || a.keys[0] == "key" {
				t.Errorf("%s with %q, %q:\n%s", program, value, a.keys, got)
			}
		}
	}
}

// Without the command line gpushare says what is missing. It is not the fault of the daemon.
func TestWithoutTheCommandLine(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/libexec/gpushare/" + enter.Program); err == nil {
		t.Skip("gpushare is installed on this host, so the command line is found")
	}
	socket, a := daemonThat(t, granted())
	got := outcome(t, filepath.Join(installed(t, "gpushare"), "gpushare"), a, []string{"GPUSHARE_SOCKET=" + socket}, []string{"status"})
	if !strings.HasPrefix(got, "1\n") || !strings.Contains(got, "gpushare: cannot start gpushare-cli: no such file or directory\nhint: ") {
		t.Error(got)
	}
}

// A full backlog is waited for by the command line, as before.
func TestRunWithAFullBacklog(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "cli")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	for { // until it is full
		c, err := net.Dial("unix", l.Addr().String())
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	cmd := exec.CommandContext(
		t.Context(),
		filepath.Join(installed(t, "gpushare", enter.Program), "gpushare"),
		"run",
		"-q",
		"sh",
		"-c",
		shows,
	)
	cmd.Env = append(os.Environ(), "GPUSHARE_TEST_ENTERING=", "GPUSHARE_SOCKET="+l.Addr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: running(nil)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // It ends with Close.
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("it ends with %v", err)
	}
	s.Close()
	<-ended
}
