package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/test/programs"
)

// asGpushare makes the test binary the command line: run becomes another program, which a test cannot.
const asGpushare = "GPUSHARE_TEST_ARGS"

// ownArguments is the value that takes the arguments of the process.
const ownArguments = "argv"

func becomeGpushare() (code int, set bool) {
	args, set := os.LookupEnv(asGpushare)
	if !set {
		return 0, false
	}
	argv := os.Args[1:]
	if args != ownArguments { // One variable has at most 128 KiB.
		argv = nil
		if err := json.Unmarshal([]byte(args), &argv); err != nil {
			return 99, true
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, asGpushare+"=") })
	return cli.Run(ctx, argv, env, cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}), true
}

func gpushare(t *testing.T, socket string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	argv, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(append(os.Environ(), env...), "GPUSHARE_SOCKET="+socket, asGpushare+"="+string(argv))
	return cmd
}

func granted() http.HandlerFunc {
	return emitting(
		api.LeaseGrant{Lease: &api.Lease{ID: "red-1", State: api.LeaseQueued, Position: 2, Waiting: "its one lease is in use"}},
		api.LeaseGrant{Lease: &api.Lease{ID: "red-1", State: api.LeaseQueued, Position: 2, Waiting: "its one lease is in use"}},
		api.LeaseGrant{Lease: &api.Lease{ID: "red-1", State: api.LeaseQueued, Position: 1, Waiting: "its one lease is in use"}},
		api.LeaseGrant{
			Lease: &api.Lease{
				ID:    "red-1",
				State: api.LeaseRunning,
			},
			Environment: map[string]string{"CUDA_VISIBLE_DEVICES": mig4, "HIDDEN": "no"},
			Unset:       []string{"CUDA_MPS_PIPE_DIRECTORY"},
			Selected:    "grant part of red",
			Warnings:    []string{"nothing is isolated"},
		},
	)
}

// attached is the answer to an attach that waited for a moment.
func attached() http.HandlerFunc {
	return emitting(
		api.LeaseGrant{Lease: &api.Lease{ID: "vision-dev-9", State: api.LeaseQueued, Position: 1, Waiting: "its memory is in use"}},
		api.LeaseGrant{
			Lease: &api.Lease{
				ID:      "vision-dev-9",
				State:   api.LeaseRunning,
				Origin:  api.OriginAttached,
				Command: []string{"notebook\x1b[31m"},
				Isolation: api.IsolationStatus{
					NotEnforced: []string{"device rules: the process stays where it is, so it can open the same GPUs as before"},
				},
			},
			Environment: map[string]string{"CUDA_VISIBLE_DEVICES": mig4, "GPUSHARE_LEASE": "vision-dev-9"},
			Unset:       []string{"CUDA_MPS_PIPE_DIRECTORY"}, Selected: "grant dev of vision: requested",
		},
	)
}

func TestRunBecomesTheCommand(t *testing.T) {
	socket := fakeDaemon(t, routes{"POST /v1/leases": granted()})
	cmd := gpushare(
		t,
		socket,
		[]string{"HIDDEN=yes", "CUDA_MPS_PIPE_DIRECTORY=/tmp/x", "KEPT=a=b"},
		"run",
		"-t",
		"red",
		"--wait",
		"--",
		"sh",
		"-c",
		`echo "$$ $CUDA_VISIBLE_DEVICES $HIDDEN ${CUDA_MPS_PIPE_DIRECTORY-unset} $KEPT"; exit 7`,
	)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("it ended with %v, want the command's own code 7", err)
	}
	pid, rest, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
	if want := mig4 + " no unset a=b"; rest != want {
		t.Errorf("the environment is %q, want %q", rest, want)
	}
	if cmd.Process == nil || pid != strconv.Itoa(cmd.Process.Pid) {
		t.Errorf("the command is process %s: it should be the calling process", pid)
	}
	compare(t, "run", "$ gpushare run -t red --wait -- sh -c …\n── standard error\n"+errs.String())
}

// TestRunOfALongCommand: Linux starts a program with 2 MiB of arguments and environment, and a request has at most 1 MiB.
func TestRunOfALongCommand(t *testing.T) {
	long := func(prefix string) (list []string) {
		for i := range 13 {
			list = append(list, fmt.Sprintf("%s%d=%s", prefix, i, strings.Repeat("x", 100_000)))
		}
		return list
	}
	run := func(t *testing.T, body *int, env []string, args ...string) (string, error) {
		t.Helper()
		socket := fakeDaemon(t, routes{"POST /v1/leases": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			b, err := io.ReadAll(q.Body)
			if err != nil {
				t.Error(err)
			}
			*body = len(b)
			granted()(w, q)
		})})
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self, args...)
		cmd.Env = append(append(os.Environ(), env...), "GPUSHARE_SOCKET="+socket, asGpushare+"="+ownArguments)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for name, c := range map[string]struct{ env, args []string }{
		"arguments":   {nil, append([]string{"run", "-q", "--", "sh", "-c", "echo $#"}, long("")...)},
		"environment": {long("V"), []string{"run", "-q", "--", "sh", "-c", "echo ${#V12}"}},
	} {
		t.Run(name, func(t *testing.T) {
			var body int
			out, err := run(t, &body, c.env, c.args...)
			if err != nil || !strings.Contains(out, map[bool]string{true: "12\n", false: "100000\n"}[c.env == nil]) {
				t.Errorf("%v:\n%s", err, out)
			}
			if body == 0 || body > 64<<10 {
				t.Errorf("the request has %d bytes", body)
			}
			out, err = run(t, &body, c.env, slices.Replace(slices.Clone(c.args), 1, 2, "--detach")...)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 126 || !strings.Contains(out, "in the background: its arguments have") ||
				strings.Contains(out, "spec") {
				t.Errorf("detached: %v:\n%s", err, out)
			}
		})
	}
}

func TestRunQuietly(t *testing.T) {
	cmd := gpushare(t, fakeDaemon(t, routes{"POST /v1/leases": granted()}), nil, "run", "-q", "true")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "grant part") || !strings.Contains(string(out), "nothing is isolated") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestRunExitCodes(t *testing.T) {
	dir := t.TempDir()
	plain, script := filepath.Join(dir, "plain"), filepath.Join(dir, "script")
	if err := errors.Join(os.WriteFile(plain, []byte("text"), 0o600), programs.Write(script, "echo hello\n")); err != nil {
		t.Fatal(err)
	}
	refusal := func(e *api.Error) any { return emitting(api.LeaseGrant{Error: e}) }
	for name, c := range map[string]struct {
		answer any // nil: the daemon must get no request
		args   []string
		code   int
		says   string
	}{
		"not found":           {nil, []string{"no-such-program"}, 127, "cannot run no-such-program: executable file not found in $PATH\n"},
		"no such path":        {nil, []string{"/no/such/program"}, 127, "cannot run /no/such/program: no such file or directory\n"},
		"not executable":      {nil, []string{plain}, 126, "cannot run " + plain + ": permission denied\n"},
		"a directory":         {nil, []string{dir}, 126, "is a directory\n"},
		"no program":          {granted(), []string{script}, 126, "exec format error\nhint: a script needs a first line"},
		"refused":             {refusal(&api.Error{Kind: api.KindConflict, Message: "its one lease is in use", Hint: "--wait waits"}), []string{"true"}, 125, "its one lease is in use\nhint: --wait waits\n"},
		"denied at once":      {&api.Error{Kind: api.KindDenied, Message: "you may not"}, []string{"true"}, 125, "you may not\n"},
		"the daemon goes":     {emitting(), []string{"--wait=20ms", "true"}, 125, "went away"},
		"no command":          {nil, nil, 2, "no command given"},
		"a wait without unit": {nil, []string{"--wait", "30", "true"}, 2, "write 30s for seconds or 30m for minutes"},
		"a wait of nothing":   {nil, []string{"--wait=soon", "true"}, 2, "is no duration"},
		"an option too many":  {nil, []string{"--grnat", "x", "true"}, 2, "did you mean --grant?"},
	} {
		t.Run(name, func(t *testing.T) {
			r := routes{}
			if c.answer != nil {
				r["POST /v1/leases"] = c.answer
			}
			cmd := gpushare(t, fakeDaemon(t, r), nil, append([]string{"run"}, c.args...)...)
			out, _ := cmd.CombinedOutput() // The exit code is what is tested.
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, c.code, c.says, out)
			}
		})
	}
}

// The request has what was written; an absent --wait differs from one without limit.
func TestRunRequests(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing":           {nil, `{"command":["true","-q","--"]}`},
		"everything":        {[]string{"-t", "red", "--grant", "part", "--kind", "mig:1g.5gb", "--wait=90s"}, `{"tenant":"red","grant":"part","kind":"mig:1g.5gb","command":["true","-q","--"],"wait":"1m30s"}`},
		"wait without end":  {[]string{"--wait"}, `{"command":["true","-q","--"],"wait":"0s"}`},
		"the next word":     {[]string{"--wait", "3s"}, `{"command":["true","-q","--"],"wait":"3s"}`},
		"and flags after":   {[]string{"--wait", "1d", "--grant", "part", "-q"}, `{"grant":"part","command":["true","-q","--"],"wait":"24h"}`},
		"before the dashes": {[]string{"-t", "red", "--wait", "1-00:00:00", "--"}, `{"tenant":"red","command":["true","-q","--"],"wait":"24h"}`},
		"a time":            {[]string{"--time", "1-12"}, `{"command":["true","-q","--"],"max_time":"36h"}`},
		"the start of one":  {[]string{"--gpu", "GPU-cd5d2d71"}, `{"gpus":["` + gpu1 + `"],"command":["true","-q","--"]}`},
		"a GPU":             {[]string{"--gpu", "4", "-g", "0,GPU-1"}, `{"gpus":["4","0","GPU-1"],"command":["true","-q","--"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 1)
			socket := fakeDaemon(
				t,
				routes{"GET /v1/status": labNode(), "POST /v1/leases": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					var b bytes.Buffer
					_, _ = b.ReadFrom(q.Body)
					got <- b.String()
					granted()(w, q)
				})},
			)
			args := append(append([]string{"run"}, c.args...), "true", "-q", "--")
			if out, err := gpushare(t, socket, nil, args...).CombinedOutput(); err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			if g := regexp.MustCompile(`,"key":"[A-Z2-7]{26}"`).ReplaceAllString(<-got, ""); g != c.want {
				t.Errorf("requested %s\nwant  %s", g, c.want)
			}
		})
	}
}

// A detached command gets the program, directory, environment and umask of its caller.
func TestRunDetached(t *testing.T) {
	requested := make(chan api.LeaseRequest, 1)
	r := routes{"POST /v1/leases": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var got api.LeaseRequest
		if err := json.NewDecoder(q.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		requested <- got
		granted()(w, q)
	})}
	cmd := gpushare(t, fakeDaemon(t, r), []string{"A=b"}, "run", "-d", "--wait", "--", "sh", "-c", "exit 7")
	cmd.Dir = t.TempDir()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || out.String() != "red-1\n" {
		t.Errorf("%v, it prints %q: %s", err, out.String(), errs.String())
	}
	got := <-requested
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	mask := procfstest.Umask(t)
	if d := got.Detach; d == nil || d.Path != sh || d.Dir != cmd.Dir || d.UMask != mask || !slices.Contains(d.Environment, "A=b") ||
		!slices.Equal(got.Command, []string{"sh", "-c", "exit 7"}) {
		t.Errorf("it requested %+v, %+v", got, got.Detach)
	}
	compare(t, "run-detached", "$ gpushare run -d --wait -- sh -c …\n"+out.String()+"── standard error\n"+errs.String())
	for code, message := range map[int]string{126: "cannot run /x: permission denied", 127: "cannot run /x: no such file or directory"} {
		r := routes{"POST /v1/leases": emitting(api.LeaseGrant{Error: &api.Error{Kind: api.KindInvalid, Message: message}, ExitCode: code})}
		cmd := gpushare(t, fakeDaemon(t, r), nil, "run", "--detach", "--", "sh")
		out, _ := cmd.CombinedOutput() // The exit code is what is tested.
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), message) {
			t.Errorf("exit code %d, want %d: %s", got, code, out)
		}
	}
}

// Ctrl-C in the queue ends the wait, and the daemon hears of it.
func TestRunInterrupted(t *testing.T) {
	waiting, ended := make(chan struct{}), make(chan struct{})
	socket := fakeDaemon(t, routes{"POST /v1/leases": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		emitting(api.LeaseGrant{Lease: &api.Lease{ID: "red-1", Position: 1, Waiting: "busy"}})(w, q)
		close(waiting)
		<-q.Context().Done()
		close(ended)
	})})
	cmd := gpushare(t, socket, nil, "run", "--wait", "true")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-waiting
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // The exit code is what is tested.
	<-ended
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(errs.String(), "gpushare: interrupted\n") {
		t.Errorf("exit code %d:\n%s", code, errs.String())
	}
}

// A command that reads standard input ends by an interrupt, whatever it waits for.
func TestInterruptedInput(t *testing.T) {
	for _, args := range [][]string{{"mig", "plan", "--offline", "--batch", "-"}, {"apply", "-f", "-"}, {"plan", "-f", "-"}, {"mig", "convert", "-"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			cmd := gpushare(t, "/nonexistent", nil, args...)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			fill(t, in) // It reads: the pipe is full only until then.
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // The exit code is what is tested.
			if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(errs.String(), "gpushare: interrupted\n") {
				t.Errorf("exit code %d:\n%s", code, errs.String())
			}
		})
	}
}

// fill writes more spaces than a pipe holds, so that it returns when they are read.
func fill(t *testing.T, in io.Writer) {
	t.Helper()
	if _, err := in.Write(bytes.Repeat([]byte(" "), 128<<10)); err != nil {
		t.Fatal(err)
	}
}

// explained is a lease of which not all holds.
func explained() api.Explanation {
	return api.Explanation{
		SchemaVersion: 1, Name: "vision-3kq6", Text: "a lease of grant dev of vision; its processes run in lab.service (attached)",
		Rules: []api.Rule{
			{What: "processes", Desired: "3 now", Reason: "a process that is moved out of its cgroup leaves the lease"},
			{
				What:     "GPU memory",
				Desired:  "30 GiB, of which 12 GiB are used",
				Enforced: true,
				By:       "gpushared samples it: the process that uses most gets SIGTERM, then SIGKILL",
			},
			{What: "GPU time", Desired: "40%", Reason: "it is never frozen, so nothing limits when it runs"},
			{
				What:     "GPU time",
				Desired:  "threads, 30%",
				Advisory: true,
				Reason:   "advisory: each process asks the MPS server for it, by its environment",
			},
		},
	}
}
