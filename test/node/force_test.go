package node

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// A GPU in use is only changed with --force, which names the leases that it stops, and stops no others.
func TestForce(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	victim, id := begin(t, n, "red", "cut", n.Burn("--memory", "1GiB", "--hold")...)
	neighbour, neighbourID := begin(t, n, "red", "part", n.Burn("--memory", "1GiB", "--hold")...)
	was := truth(t, n)
	other := replaced(t, shared, "layout: [3g.20gb, 1g.5gb]", "layout: [7g.40gb]")
	other = replaced(t, other, "mig: 3g.20gb}", "mig: 7g.40gb}")
	r := n.CLIIn(soon(t), other, "apply", "-f", "-")
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, id) || !strings.Contains(r.Err, "--force") {
		t.Errorf("without force apply exits with %d: %s", r.Code, r.Err)
	}
	if got := truth(t, n); got != was {
		t.Errorf("without force the node was changed:\n got %s\nwant %s", got, was)
	}
	r = n.CLIIn(soon(t), other, "apply", "-f", "-", "--check", "--force")
	if r.Code != 0 || !strings.Contains(r.Out, "disturbs: ") || !strings.Contains(r.Out, id) || strings.Contains(r.Out, neighbourID) {
		t.Errorf("--check --force exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	r = n.CLIIn(soon(t), other, "apply", "-f", "-", "--force")
	if r.Code != 0 {
		t.Fatalf("with force apply exits with %d: %s%s\n%s", r.Code, r.Out, r.Err, daemonLog(n))
	}
	if code := awaitEnd(t, victim); code == 0 || code == -int(syscall.SIGKILL) {
		t.Errorf("the lease in the way ended with %d, want its exit code after SIGTERM", code)
	}
	select {
	case <-neighbour.Done():
		t.Error("another lease was stopped")
	default:
	}
	s := awaitChange(t, n)
	explained(t, s, "after a forced change")
	if leaseByID(s, id) != nil || leaseByID(s, neighbourID) == nil {
		t.Errorf("the leases are %+v", s.Leases)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "true"); r.Code != 0 {
		t.Errorf("no lease gets a created instance: %s", r.Err)
	}
}

// A grant in use is not removed without --force. Its share is changed while the lease runs.
func TestGrantInUse(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	job, id := begin(t, n, "red", "part", "sleep", "60")
	for name, spec := range map[string]string{
		"the grant is removed": replaced(t, shared, "      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}\n", ""),
		"its GPU is exclusive": replaced(t, shared, "{select: {index: 2}, mode: timeslice}", "{select: {index: 2}, mode: exclusive}"),
		"its GPU is unmanaged": replaced(t, shared, "  - {select: {index: 2}, mode: timeslice}\n", ""),
	} {
		if spec == shared {
			t.Fatalf("%s: nothing was replaced", name)
		}
		r := n.CLIIn(soon(t), spec, "apply", "-f", "-")
		if r.Code != api.ExitConflict || !strings.Contains(r.Err, id) {
			t.Errorf("%s: apply exits with %d: %s", name, r.Code, r.Err)
		}
	}
	if g := status(t, n).Node.Generation; g != 1 {
		t.Errorf("generation %d after refusals", g)
	}
	r := n.CLIIn(soon(t), replaced(t, shared, "share: 30%, gpu_memory: 8GiB", "share: 50%, gpu_memory: 8GiB"), "apply", "-f", "-")
	if r.Code != 0 {
		t.Errorf("a change of the share exits with %d: %s", r.Code, r.Err)
	}
	awaitStatus(t, n, "the share is not the new one", func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.Share != nil && l.Share.Entitled == 50
	})
	r = n.CLIIn(
		soon(t), replaced(t, shared, "      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}\n", ""), "apply", "-f", "-",
		"--force",
	)
	if r.Code != 0 {
		t.Errorf("with force apply exits with %d: %s", r.Code, r.Err)
	}
	if code := awaitEnd(t, job); code != -int(syscall.SIGTERM) {
		t.Errorf("the job ended with %d, not by SIGTERM", code)
	}
	explained(t, awaitChange(t, n), "after the removal of the grant")
}

// An unattributed process blocks a change. --force names it and stops it gracefully. A process of root is never stopped, and
// then nothing is changed.
func TestForceStopsAnUnattributedProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	was := truth(t, n)
	device := ""
	for _, in := range status(t, n).GPUs[0].MIG.Instances {
		if in.Profile == "3g.20gb" {
			device = in.UUIDs[0]
		}
	}
	burn := func(uid uint32) (pid string, ended <-chan struct{}, kill func()) {
		args := n.Burn("--gpu", device, "--memory", "1GiB", "--hold", "--seconds", "60")
		cmd := exec.CommandContext(soon(t), args[0], args[1:]...)
		cmd.Env, cmd.Dir = n.Environ(), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			_ = cmd.Wait() // It is stopped.
			close(done)
		}()
		kill = func() {
			_ = cmd.Process.Kill() // It may have ended.
			<-done
		}
		t.Cleanup(kill)
		return fmt.Sprint("pid ", cmd.Process.Pid), done, kill
	}
	other := replaced(t, shared, "layout: [3g.20gb, 1g.5gb]", "layout: [7g.40gb]")
	other = replaced(t, other, "mig: 3g.20gb}", "mig: 7g.40gb}")
	refused := func(what, who string, code int, args ...string) {
		t.Helper()
		var r harness.Result
		err := harness.Await(soon(t), 20*time.Millisecond, what+" is not seen", func() (bool, error) {
			r = n.CLIIn(soon(t), other, append([]string{"apply", "-f", "-", "--check"}, args...)...)
			return r.Code == code && strings.Contains(r.Err, who), nil
		})
		if err != nil {
			t.Fatalf("%v: exit %d: %s%s", err, r.Code, r.Out, r.Err)
		}
	}

	root, _, kill := burn(0)
	refused("root's process", root, api.ExitInfeasible, "--force")
	refused("root's process", "node.quiesce", api.ExitInfeasible)
	if r := n.CLIIn(soon(t), other, "apply", "-f", "-", "--force"); r.Code != api.ExitInfeasible || truth(t, n) != was {
		t.Errorf("over root's process apply exits with %d: %s%s\n%s", r.Code, r.Out, r.Err, truth(t, n))
	}
	kill()

	user, ended, _ := burn(65534)
	refused("the process of a user", user, api.ExitConflict)
	r := n.CLIIn(soon(t), other, "apply", "-f", "-", "--check", "--force")
	if r.Code != 0 || !strings.Contains(r.Out, "disturbs: "+user) || !strings.Contains(r.Out, "stop "+user) ||
		!strings.Contains(r.Out, "gpusim-burn, for ") {
		t.Errorf("--check --force exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	r = n.CLIIn(soon(t), other, "apply", "-f", "-", "--force")
	if r.Code != 0 {
		t.Fatalf("with force apply exits with %d: %s%s\n%s", r.Code, r.Out, r.Err, daemonLog(n))
	}
	select {
	case <-ended:
	default:
		t.Error("the change is done and the process runs")
	}
	// Unattributed processes are scanned in their own interval.
	awaitStatus(t, n, "ended processes are still reported", func(s *api.Status) bool {
		return !slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool { return c.Kind == "unattributed" })
	})
	explained(t, awaitChange(t, n), "after force")
	if got := truth(t, n); got == was {
		t.Errorf("apply reports success and nothing changed: %s", r.Out)
	}
}
