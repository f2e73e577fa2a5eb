package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

// detach starts a script with --detach and returns the id of its lease.
func detach(t *testing.T, n *harness.Node, script string, args ...string) string {
	t.Helper()
	r := n.CLI(soon(t), append(append([]string{"run", "-q", "--detach"}, args...), "--", "sh", "-c", script)...)
	if r.Code != 0 {
		t.Fatalf("run --detach exits with %d: %s", r.Code, r.Err)
	}
	return strings.TrimSpace(r.Out)
}

// awaitResult waits for the end of a lease and returns its record.
func awaitResult(t *testing.T, n *harness.Node, id string) *api.Lease {
	t.Helper()
	var found *api.Lease
	err := harness.Await(soon(t), 10*time.Millisecond, "the lease does not end", func() (bool, error) {
		all, err := n.Client().Leases(soon(t), true)
		if err != nil {
			return false, err
		}
		for i := range all {
			if all[i].ID == id && all[i].State == api.LeaseEnded {
				found = &all[i]
			}
		}
		return found != nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestDetached(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	go1 := filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(go1, 0o600); err != nil {
		t.Fatal(err)
	}
	id := detach(
		t,
		n,
		`echo "lease=$GPUSHARE_LEASE on $CUDA_VISIBLE_DEVICES"; cat /proc/self/cgroup; read x <`+go1+`; echo done; exit 3`,
		"-t",
		"red",
		"--grant",
		"part",
	)
	s := status(t, n)
	l := leaseByID(s, id)
	if l == nil || l.Origin != api.OriginDetached || l.State != api.LeaseRunning || l.PID == 0 {
		t.Fatalf("the lease is %+v", l)
	}
	follower := exec.CommandContext(soon(t), filepath.Join(n.Bin, "gpushare"), "lease", "logs", "-f", id)
	follower.Env = n.Environ()
	var followed bytes.Buffer
	follower.Stdout, follower.Stderr = &followed, &followed
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	// It survives a kill of the daemon. A follower of its output has to reconnect.
	n.KillDaemon()
	_ = follower.Wait() // The connection was closed.
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	events := follow(t, n)
	if again := leaseByID(status(t, n), id); again == nil || again.PID != l.PID || again.Origin != api.OriginDetached ||
		again.Generation != l.Generation {
		t.Fatalf("after a kill the lease is %+v", again)
	}
	follower = exec.CommandContext(soon(t), filepath.Join(n.Bin, "gpushare"), "lease", "logs", "-f", id)
	follower.Env = n.Environ()
	followed.Reset()
	follower.Stdout, follower.Stderr = &followed, &followed
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(go1, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := follower.Wait(); err != nil {
		t.Errorf("following ends with %v", err)
	}
	out := followed.String()
	if !strings.HasPrefix(out, "lease="+id+" on "+s.GPUs[2].UUID+"\n") || !strings.HasSuffix(out, "\ndone\n") {
		t.Errorf("the follower saw %q", out)
	}
	if l.Isolation.Cgroup != "" && !strings.Contains(out, l.Isolation.Cgroup+"\n") {
		t.Errorf("it was not in %s from its first moment:\n%s", l.Isolation.Cgroup, out)
	}
	ended := awaitResult(t, n, id)
	if ended.Result != "exited with 3" || ended.ExitCode == nil || *ended.ExitCode != 3 || ended.Ended == nil {
		t.Errorf("it ended as %+v", ended)
	}
	if e := events.await(t, "lease.ended", id); e.Message != "the command exited with 3" {
		t.Errorf("the event says %q", e.Message)
	}
	if r := n.CLI(soon(t), "lease", "logs", "-n", "1", id); r.Code != 0 || r.Out != "done\n" {
		t.Errorf("logs after the end exit with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "lease", "show", id); r.Code != 0 || !strings.Contains(r.Out, "exited with 3") {
		t.Errorf("show after the end exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	// Its record outlives the daemon.
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if again := awaitResult(t, n, id); again.Result != "exited with 3" {
		t.Errorf("after another kill it ended as %+v", again)
	}
	if r := n.CLI(soon(t), "lease", "logs", id); r.Code != 0 || r.Out != out {
		t.Errorf("logs after another kill exit with %d: %q%s", r.Code, r.Out, r.Err)
	}
}

// A lease that ends while the daemon does not run has a result too.
func TestDetachedEndsWithoutTheDaemon(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	id := detach(t, n, `kill -9 $$`+"\n", "-t", "red", "--grant", "part")
	if l := awaitResult(t, n, id); l.Result != "killed by SIGKILL" || *l.ExitCode != 137 {
		t.Errorf("it ended as %+v", l)
	}
	fifo := filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	id = detach(t, n, "read x <"+fifo+"; exit 4", "-t", "red", "--grant", "part")
	pid := leaseByID(status(t, n), id).PID
	n.KillDaemon()
	if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := harness.Await(soon(t), time.Millisecond, "it does not end", func() (bool, error) {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return errors.Is(err, fs.ErrNotExist), nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if l := awaitResult(t, n, id); l.Result != "exited with 4" || l.Reason != "its processes exited while the daemon did not run" {
		t.Errorf("it ended as %+v", l)
	}
}

func TestDetachedRefusals(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	dir := t.TempDir()
	if err := programs.Write(filepath.Join(dir, "script"), "echo\n"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"not there", []string{"/no/such/program"}, 127, "no such file"},
		{"no program", []string{filepath.Join(dir, "script")}, 126, "first line"},
		{"another's grant", []string{"-t", "green", "--", "true"}, 125, "green"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.CLI(soon(t), append([]string{"run", "--detach", "-t", "red", "--grant", "part"}, c.args...)...)
			if r.Code != c.code || !strings.Contains(r.Err, c.says) || r.Out != "" {
				t.Errorf("exit code %d, want %d, and %q in:\n%s%s", r.Code, c.code, c.says, r.Out, r.Err)
			}
		})
	}
	awaitStatus(t, n, "leases of refused requests are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
	_, id := begin(t, n, "red", "part", "sleep", "60")
	if r := n.CLI(soon(t), "lease", "logs", id); r.Code != api.ExitUsage || !strings.Contains(r.Err, "prints to where it was started") {
		t.Errorf("logs of a lease with a terminal exit with %d: %s", r.Code, r.Err)
	}
	stopped := detach(t, n, "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done", "-t", "red", "--grant", "part")
	awaitLogs(t, n, stopped, "ready\n")
	if r := n.CLI(soon(t), "lease", "stop", stopped); r.Code != 0 {
		t.Errorf("stop exits with %d: %s", r.Code, r.Err)
	}
	if l := awaitResult(t, n, stopped); l.Result != "exited with 0" || !strings.HasPrefix(l.Reason, "stopped by ") {
		t.Errorf("it ended as %+v", l)
	}
	if r := n.CLI(
		soon(t), "lease", "logs", stopped,
	); !strings.Contains(r.Out, "gpushare: lease "+stopped+": it is being stopped: stopped by ") ||
		!strings.Contains(r.Out, "asked\n") {
		t.Errorf("its output is %q", r.Out)
	}
}

// A detached command does not run without what confines its caller: the request is refused with its name, and leaves nothing.
func TestDetachedKeepsConfinement(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("confining a process needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	for _, c := range []struct {
		name  string
		under []string
		says  string
	}{
		{"a network namespace", []string{"unshare", "--net"}, "would be lost: network namespace"},
		{"mounts", []string{"unshare", "--mount", "--pid", "--fork"}, "would be lost: mount namespace, pid namespace"},
		{"root of a user namespace", []string{"unshare", "--user", "--map-root-user"}, "would be lost: user namespace"},
		{"no new privileges", []string{"setpriv", "--no-new-privs"}, "would be lost: no_new_privs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(c.under[1:], filepath.Join(n.Bin, "gpushare"), "run", "--detach", "-t", "red", "--grant", "part", "--", "true")
			cmd := exec.CommandContext(soon(t), c.under[0], args...)
			cmd.Env = n.Environ()
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "unshare failed") {
				t.Skipf("needs a kernel with it: %s", out)
			}
			if cmd.ProcessState.ExitCode() != 126 || !strings.Contains(string(out), c.says) ||
				!strings.Contains(string(out), "without --detach") {
				t.Errorf("it ended with %v, want 126 and %q: %s", err, c.says, out)
			}
		})
	}
	awaitStatus(t, n, "leases of refused requests are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
}

func awaitLogs(t *testing.T, n *harness.Node, id, text string) {
	t.Helper()
	err := harness.Await(soon(t), 10*time.Millisecond, "it does not print "+text, func() (bool, error) {
		r := n.CLI(soon(t), "lease", "logs", id)
		return strings.Contains(r.Out, text), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A detached command of a member has the credentials and the environment of the member, and other users cannot read its
// output.
func TestDetachedMember(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	r := as(
		t, n, "run", "-q", "--detach", "--grant", "part", "--", "sh", "-c",
		"id -u; id -g; id -G; grep CapEff /proc/self/status; umask; pwd; echo $HOME",
	)
	if r.Code != 0 {
		t.Fatalf("exit code %d: %s", r.Code, r.Err)
	}
	id := strings.TrimSpace(r.Out)
	awaitResult(t, n, id)
	r = as(t, n, "lease", "logs", id)
	if want := fmt.Sprintf(
		"65534\n65534\n65534\nCapEff:\t0000000000000000\n%04o\n/\n%s\n",
		procfstest.Umask(t),
		os.Getenv("HOME"),
	); r.Out != want {
		t.Errorf("it printed\n%s%s\nwant\n%s", r.Out, r.Err, want)
	}
	secret := detach(t, n, "echo secret", "-t", "red", "--grant", "part")
	awaitResult(t, n, secret)
	if r := as(t, n, "lease", "logs", secret); r.Code != api.ExitFailed || !strings.Contains(r.Err, "there is no lease") ||
		strings.Contains(r.Out, "secret") {
		t.Errorf("another tenant's output: exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := as(t, n, "lease", "list", "--all"); strings.Contains(r.Out, secret) {
		t.Errorf("another tenant's lease is listed: %s", r.Out)
	}
}

// Requests that wait when the daemon is killed wait again, and are served in the original order.
func TestQueueOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	user, _ := begin(t, n, "blue", "whole", "sleep", "60")
	order := filepath.Join(t.TempDir(), "order")
	var jobs []*harness.Job
	for i := range 4 {
		job, err := n.Run("-t", "red", "--grant", "whole", "--wait=60s", "--", "sh", "-c", fmt.Sprintf("echo %d >>%s", i, order))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		jobs = append(jobs, job)
		if err := job.AwaitLine(soon(t), fmt.Sprintf("waiting, position %d", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		n.KillDaemon()
		for _, j := range jobs {
			if err := j.AwaitLine(soon(t), "went away"); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		awaitStatus(t, n, "they do not reconnect", func(s *api.Status) bool { return len(s.Leases) == 5 })
	}
	// While it does not run the GPU becomes free, and a request that never waited comes first.
	n.KillDaemon()
	user.Kill()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		if code := awaitEnd(t, j); code != 0 {
			t.Errorf("a job ended with %d: %s", code, j.Output())
		}
	}
	b, err := os.ReadFile(order)
	if err != nil || strings.Join(strings.Fields(string(b)), "") != "0123" {
		t.Errorf("they were served in the order %q, %v", b, err)
	}
	awaitStatus(t, n, "leases are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
}

// A terminal obeys nothing that a detached program printed, unless its user says so.
func TestLogsOnATerminal(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	id := detach(t, n, `printf '\033]0;mine\007end\n'`, "-t", "red", "--grant", "part")
	awaitResult(t, n, id)
	for _, c := range []struct {
		flags []string
		want  string
	}{{nil, "^[]0;mine^Gend"}, {[]string{"--raw"}, "\x1b]0;mine\aend"}} {
		s, tty := openTerminal(t)
		job, err := n.OnTerminal(tty, append([]string{"lease", "logs", id}, c.flags...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		if err := s.await(soon(t), "end"); err != nil {
			t.Fatal(err)
		}
		if got := s.String(); !strings.Contains(got, c.want) {
			t.Errorf("%v: the terminal gets %q, want %q", c.flags, got, c.want)
		}
	}
}
