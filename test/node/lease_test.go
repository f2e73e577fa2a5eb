package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// shared is a node whose tenants have a grant of each kind.
const shared = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 1g.5gb]}}
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: exclusive}
tenants:
  - name: red
    grants:
      - {name: cut, mig: 3g.20gb}
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}
      - {name: whole, exclusive: 1}
      - {name: short, timeslice: {share: 10%, gpu_memory: 1GiB}, max_time: 10s}
  - name: blue
    members: {users: [nobody]}
    priority: high
    overuse: {gpu_memory: kill, grace: 500ms}
    grants:
      - {name: part, timeslice: {share: 40%, gpu_memory: 2GiB}}
      - {name: whole, exclusive: 1}
`

// begin starts a job and waits until its command runs. The command first prints its lease.
func begin(t *testing.T, n *harness.Node, tenant, grant string, command ...string) (*harness.Job, string) {
	t.Helper()
	script := `echo "lease=$GPUSHARE_LEASE."; exec ` + strings.Join(command, " ")
	job, err := n.Run("-q", "-t", tenant, "--grant", grant, "--", "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "."); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(job.Output(), "lease=")
	id, _, _ := strings.Cut(rest, ".")
	return job, id
}

// awaitEnd waits for the end of a job and returns its exit code.
func awaitEnd(t *testing.T, job *harness.Job) int {
	t.Helper()
	select {
	case <-job.Done():
	case <-soon(t).Done():
		t.Fatalf("the job does not end: %s", job.Output())
	}
	return job.Code()
}

// awaitStatus waits until condition returns true for the status.
func awaitStatus(t *testing.T, n *harness.Node, what string, condition func(*api.Status) bool) *api.Status {
	t.Helper()
	var last *api.Status
	c, ctx := n.Client(), soon(t)
	defer c.Close()
	err := harness.Await(ctx, 10*time.Millisecond, what, func() (bool, error) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err
		}
		last = s
		return condition(s), nil
	})
	if err != nil {
		b, _ := json.Marshal(last) // For the failure message only.
		t.Fatalf("%v\n%s", err, b)
	}
	return last
}

func leaseByID(s *api.Status, id string) *api.Lease {
	i := slices.IndexFunc(s.Leases, func(l api.Lease) bool { return l.ID == id })
	if i < 0 {
		return nil
	}
	return &s.Leases[i]
}

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("not a program"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"the command's own", []string{"-t", "red", "--grant", "part", "--", "sh", "-c", "exit 7"}, 7, ""},
		{"success", []string{"-t", "red", "--grant", "cut", "--", "true"}, 0, ""},
		{"not found", []string{"-t", "red", "--", "no-such-program"}, 127, "no-such-program"},
		{"not a program", []string{"-t", "red", "--", plain}, 126, "permission denied"},
		{"unknown grant", []string{"-t", "red", "--grant", "parts", "--", "true"}, 125, "part"},
		{"unknown tenant", []string{"-t", "green", "--", "true"}, 125, "green"},
		{"no such kind", []string{"-t", "red", "--kind", "mps", "--", "true"}, 125, "mps"},
		{"no command", []string{"-t", "red"}, api.ExitUsage, "no command given"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.CLI(soon(t), append([]string{"run"}, c.args...)...)
			if r.Code != c.code || !strings.Contains(r.Err, c.says) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", r.Code, c.code, c.says, r.Err)
			}
			if strings.Contains(r.Err, "cannot: cannot") || strings.Count(r.Err, "cannot ") > 2 {
				t.Errorf("the refusal stutters: %s", r.Err)
			}
		})
	}
	awaitStatus(t, n, "leases of commands that ended are still there", func(s *api.Status) bool { return len(s.Leases) == 0 })
}

func TestEnvironmentOfALease(t *testing.T) {
	n := start(t, quick)
	apply(t, n, shared)
	s := status(t, n)
	instance := ""
	for _, in := range s.GPUs[0].MIG.Instances {
		if in.Profile == "3g.20gb" {
			instance = in.UUIDs[0]
		}
	}
	for _, c := range []struct{ grant, device string }{{"cut", instance}, {"part", s.GPUs[2].UUID}, {"whole", s.GPUs[3].UUID}} {
		t.Run(c.grant, func(t *testing.T) {
			t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/of-another-user")
			t.Setenv("NVIDIA_VISIBLE_DEVICES", "all")
			r := n.CLI(soon(t), "run", "-t", "red", "--grant", c.grant, "--", "env")
			lines := strings.Split(r.Out, "\n")
			for _, want := range []string{"CUDA_VISIBLE_DEVICES=" + c.device, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "GPUSHARE_TENANT=red", "GPUSHARE_GRANT=" + c.grant} {
				if !slices.Contains(lines, want) {
					t.Errorf("%s is not in the environment:\n%s%s", want, r.Out, r.Err)
				}
			}
			for _, never := range []string{"CUDA_MPS_PIPE_DIRECTORY=", "NVIDIA_VISIBLE_DEVICES="} {
				if strings.Contains("\n"+r.Out, "\n"+never) {
					t.Errorf("%s was inherited", never)
				}
			}
		})
	}
	t.Run("gpushare env inside", func(t *testing.T) {
		r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "gpushare", "env")
		if r.Code != 0 || !strings.Contains(r.Out, "export CUDA_VISIBLE_DEVICES='"+instance+"'") ||
			!strings.Contains(r.Out, "unset CUDA_MPS_PIPE_DIRECTORY") {
			t.Errorf("exit code %d:\n%s%s", r.Code, r.Out, r.Err)
		}
	})
	t.Run("gpushare env outside", func(t *testing.T) {
		if r := n.CLI(soon(t), "env"); r.Code != api.ExitFailed || !strings.Contains(r.Err, "no lease") {
			t.Errorf("exit code %d: %s%s", r.Code, r.Out, r.Err)
		}
	})
}

// A waiting request gets the GPU when it is free, the higher priority first. A cancelled request is removed from the queue.
func TestQueue(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	first, id := begin(t, n, "red", "whole", "sleep", "60")

	r := n.CLI(soon(t), "run", "-t", "blue", "--grant", "whole", "--", "true")
	if r.Code != 125 || !strings.Contains(r.Err, "--wait") {
		t.Errorf("without --wait the exit code is %d: %s", r.Code, r.Err)
	}
	r = n.CLI(soon(t), "run", "-t", "blue", "--grant", "whole", "--wait=100ms", "--", "true")
	if r.Code != 125 || !strings.Contains(r.Err, "waited 100ms") {
		t.Errorf("after the wait the exit code is %d: %s", r.Code, r.Err)
	}

	order := filepath.Join(t.TempDir(), "order")
	wait := func(tenant, grant string) *harness.Job {
		queued := len(status(t, n).Leases)
		job, err := n.Run("-q", "-t", tenant, "--grant", grant, "--wait", "--", "sh", "-c", "echo "+tenant+" >> "+order+"; sleep 0.2")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		awaitStatus(t, n, tenant+" does not queue", func(s *api.Status) bool { return len(s.Leases) > queued })
		return job
	}
	red := wait("red", "whole")       // one lease of this grant runs: the request waits for two conditions
	blue := wait("blue", "whole")     // later, with a higher priority
	cancelled := wait("red", "whole") // is cancelled
	s := status(t, n)
	for _, l := range s.Leases {
		if l.ID != id && (l.State != api.LeaseQueued || l.Waiting == "" || l.Position == 0) {
			t.Errorf("lease %s is %s, place %d: %q", l.ID, l.State, l.Position, l.Waiting)
		}
		if l.State == api.LeaseQueued && l.Tenant == "blue" && l.Position != 1 {
			t.Errorf("the request with the higher priority has position %d", l.Position)
		}
	}
	if err := cancelled.AwaitLine(soon(t), "waiting, position"); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(cancelled.PID(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := awaitEnd(t, cancelled); code == 0 {
		t.Error("a cancelled run exits with 0")
	}
	awaitStatus(t, n, "the cancelled request is still in the queue", func(s *api.Status) bool { return len(s.Leases) == 3 })

	first.Kill()
	for name, job := range map[string]*harness.Job{"blue": blue, "red": red} {
		if code := awaitEnd(t, job); code != 0 {
			t.Errorf("%s ended with %d: %s", name, code, job.Output())
		}
	}
	b, err := os.ReadFile(order)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(b)); !slices.Equal(got, []string{"blue", "red"}) {
		t.Errorf("the GPU was given in the order %v", got)
	}
	awaitStatus(t, n, "leases are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
}

func TestLeaseStop(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	job, id := begin(t, n, "red", "part", "sleep", "60")
	if r := n.CLI(soon(t), "lease", "show", id); r.Code != 0 || !strings.Contains(r.Out, fmt.Sprint(job.PID())) {
		t.Errorf("lease show exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "lease", "stop", "no-such-lease"); r.Code != api.ExitFailed || !strings.Contains(r.Err, "no-such-lease") {
		t.Errorf("stopping nothing exits with %d: %s", r.Code, r.Err)
	}
	r := n.CLI(soon(t), "lease", "stop", id)
	if r.Code != 0 {
		t.Fatalf("lease stop exits with %d: %s", r.Code, r.Err)
	}
	if code := awaitEnd(t, job); code != -int(syscall.SIGTERM) {
		t.Errorf("the job ended with %d, not by SIGTERM", code)
	}
	if s := status(t, n); leaseByID(s, id) != nil {
		t.Errorf("the stopped lease is still there when stop returns: %+v", leaseByID(s, id))
	}
}

// A lease near its max_time gets a warning on its terminal and an event. At max_time it gets SIGTERM, with the reason.
func TestMaxTime(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	events := follow(t, n)
	screen, job := onTerminal(t, n, "-q", "-t", "red", "--grant", "short", "--", "sleep", "60")
	var id string
	s := awaitStatus(t, n, "it does not run", func(s *api.Status) bool {
		l := harness.Lease(s, "red", "short")
		return l != nil && l.State == api.LeaseRunning
	})
	l := harness.Lease(s, "red", "short")
	id = l.ID
	if l.Expires == nil || l.Started == nil ||
		l.Expires.Sub(*l.Started) != 10*time.Second { // A tenth of it is long enough for the notice, also on a busy host.
		t.Fatalf("the lease does not show its end: %+v", l)
	}
	if code := awaitEnd(t, job); code != -int(syscall.SIGTERM) {
		t.Errorf("the job ended with %d, not by SIGTERM", code)
	}
	for _, want := range []string{"lease.max-time", "lease.stopping", "lease.ended"} {
		if e := events.await(t, want, id); e.Kind == "lease.stopping" && !strings.Contains(e.Message, "max_time") {
			t.Errorf("the event lacks the reason: %q", e.Message)
		}
	}
	for _, want := range []string{"gpushare: lease " + id + ": its max_time of 10s ends in 1s", "it is being stopped: its max_time has passed"} {
		if err := screen.await(soon(t), want); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Count(screen.String(), "its max_time of"); got != 1 {
		t.Errorf("%d warnings, want 1:\n%s", got, screen.String())
	}
	awaitStatus(t, n, "the lease is still there", func(s *api.Status) bool { return leaseByID(s, id) == nil })
}

// The GPU memory of a grant is sampled. With overuse notify the lease runs on, with kill it is stopped, and no other lease.
func TestMemoryOveruse(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	innocent, _ := begin(t, n, "red", "whole", n.Burn("--memory", "1GiB", "--hold")...)
	notified, notifiedID := begin(t, n, "red", "part", n.Burn("--memory", "9GiB", "--hold")...)
	s := awaitStatus(t, n, "the overuse is not reported", func(s *api.Status) bool {
		l := leaseByID(s, notifiedID)
		return l != nil && len(l.Notices) > 0 && l.GPUMemory != nil && l.GPUMemory.Stage == "over"
	})
	if l := leaseByID(s, notifiedID); l.GPUMemory.Used < 9<<30 || l.GPUMemory.Limit != 8<<30 {
		t.Errorf("the lease shows %+v", l.GPUMemory)
	}
	stopped, stoppedID := begin(t, n, "blue", "part", n.Burn("--memory", "3GiB", "--hold")...)
	began := time.Now()
	code := awaitEnd(t, stopped)
	if code != 128+int(syscall.SIGTERM) { // SIGTERM comes first, and the job handles it.
		t.Errorf("the lease that uses too much ended with %d: %s", code, stopped.Output())
	}
	if elapsed := time.Since(began); elapsed < 400*time.Millisecond {
		t.Errorf("it was stopped after %s, its grace is 500ms", elapsed)
	}
	s = awaitStatus(t, n, "the stopped lease is still there", func(s *api.Status) bool { return leaseByID(s, stoppedID) == nil })
	if leaseByID(s, notifiedID) == nil {
		t.Error("the lease with overuse notify was stopped")
	}
	for name, job := range map[string]*harness.Job{"innocent": innocent, "notified": notified} {
		select {
		case <-job.Done():
			t.Errorf("%s ended: %s", name, job.Output())
		default:
		}
	}
}

// With enforce: observe a plan is shown, nothing is written, and commands run with a warning.
func TestObserve(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	for _, enforce := range []string{"node: {enforce: observe}\n", ""} {
		spec := replaced(t, shared, "node: {enforce: on}\n", enforce)
		r := n.CLIIn(soon(t), spec, "apply", "-f", "-")
		if r.Code != 0 || !strings.Contains(r.Out, "enforce: observe") || enforce != "" && !strings.Contains(r.Out, "3g.20gb") {
			t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
	}
	r := n.CLI(soon(t), "run", "-t", "red", "--grant", "part", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
	if r.Code != 0 || strings.TrimSpace(r.Out) != status(t, n).GPUs[2].UUID || !strings.Contains(r.Err, "only observes") {
		t.Errorf("run exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	job, id := begin(t, n, "blue", "part", n.Burn("--memory", "3GiB", "--hold")...)
	awaitStatus(t, n, "the overuse is not seen", func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Used > 3<<30
	})
	// Its grace is 0.5 s. A short job that ends shows that this time has passed and that no lease is stopped.
	select {
	case <-job.Done():
		t.Errorf("a lease was stopped with enforce: observe: %s", job.Output())
	case <-time.After(1500 * time.Millisecond):
	}
	if got := writes(t, n); got != 0 {
		t.Errorf("%d writes with enforce: observe", got)
	}
	if os.Geteuid() == 0 {
		top := filepath.Join(unified(t), n.Subtree())
		created, err := filepath.Glob(filepath.Join(top, "*red*"))
		if err != nil || len(created) > 0 {
			t.Errorf("cgroups were created with enforce: observe: %v %v", created, err)
		}
	}
	job.Kill()
	awaitStatus(t, n, "leases are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
}

// as runs gpushare as the user nobody, a member of blue.
func as(t *testing.T, n *harness.Node, args ...string) harness.Result {
	t.Helper()
	cmd := exec.CommandContext(soon(t), filepath.Join(n.Bin, "gpushare"), args...)
	cmd.Env, cmd.Dir = n.Environ(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // The exit code is checked.
	return harness.Result{Code: cmd.ProcessState.ExitCode(), Out: out.String(), Err: errs.String()}
}

// A member uses the grants of their tenant, sees its leases, and stops their own leases.
func TestMember(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	secret := "secret-of-red"
	_, id := begin(t, n, "red", "part", n.Burn("--memory", "1GiB", "--hold")...)
	_, wholeID := begin(t, n, "red", "whole", "sleep", "60", "#", secret)
	if r := as(t, n, "run", "--grant", "part", "--", "sh", "-c", "exit 3"); r.Code != 3 {
		t.Errorf("a member's run exits with %d: %s", r.Code, r.Err)
	}
	if r := as(t, n, "run", "-t", "red", "--", "true"); r.Code != 125 || !strings.Contains(r.Err, "red") {
		t.Errorf("a run for another tenant exits with %d: %s", r.Code, r.Err)
	}
	for _, victim := range []string{id, wholeID} {
		if r := as(t, n, "lease", "stop", victim); r.Code == 0 {
			t.Errorf("a member stopped a lease of another tenant")
		}
	}
	for _, args := range [][]string{{"get"}, {"plan"}, {"doctor"}, {"config", "reload"}, {"gpu", "retry", "0"}} {
		if r := as(t, n, args...); r.Code != api.ExitDenied || !strings.Contains(r.Err, "may not") {
			t.Errorf("%v exits with %d: %s", args, r.Code, r.Err)
		}
	}
	// The GPU is in use by another tenant, whose name must not be shown.
	r := as(t, n, "run", "--grant", "whole", "--", "true")
	if r.Code != 125 || strings.Contains(r.Err, "red") {
		t.Errorf("waiting for another tenant's GPU exits with %d: %s", r.Code, r.Err)
	}
	for _, args := range [][]string{{"status", "--json"}, {"status"}, {"lease", "list"}, {"gpu", "list"}, {"tenant", "list"}} {
		r := as(t, n, args...)
		if r.Code != 0 {
			t.Errorf("%v exits with %d: %s", args, r.Code, r.Err)
		}
		for _, hidden := range []string{secret, id, wholeID, `"red"`, "gpusim-burn"} {
			if strings.Contains(r.Out, hidden) {
				t.Errorf("%v shows %q of another tenant:\n%s", args, hidden, r.Out)
			}
		}
	}
}

// After a boot the layout is restored at its placements before a lease uses it.
func TestReboot(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, slow)
	apply(t, n, shared)
	was := truth(t, n)
	n.StopDaemon()
	if err := n.Ctl(soon(t), nil, "reboot"); err != nil {
		t.Fatal(err)
	}
	if got := truth(t, n); got != "" {
		t.Fatalf("instances outlived the boot: %s", got)
	}
	// The runtime directory is emptied as at a boot. The thaw watchdog runs on, because the host was not booted.
	for _, name := range []string{"leases.json", "leases.json.previous"} {
		if err := os.Remove(filepath.Join(n.Dir, "run", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	var r harness.Result
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := harness.Await(ctx, time.Millisecond, "no lease starts after a boot", func() (bool, error) {
		r = n.CLI(ctx, "run", "-q", "-t", "red", "--grant", "cut", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
		return r.Code == 0, nil
	})
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, r.Err, daemonLog(n))
	}
	if got := truth(t, n); got != was {
		t.Errorf("a lease started and the node has\n got %s\nwant %s", got, was)
	}
	t.Logf("admitted after %s", time.Since(began))
	explained(t, awaitChange(t, n), "after a boot")
	if r := n.CLIIn(soon(t), shared, "apply", "-f", "-"); r.Code != 0 || !strings.Contains(r.Out, "no changes") {
		t.Errorf("after a boot an apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}
