package node

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/tracing"
)

// contextOn starts a process of no lease with a context on a device.
func contextOn(t *testing.T, n *harness.Node, uid uint32, device ...string) *exec.Cmd {
	t.Helper()
	argv := n.Burn(append(device, "--memory", "64MiB", "--hold")...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = n.Environ(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // It may have ended.
		_ = cmd.Wait()
	})
	var line [64]byte
	if n, err := out.Read(line[:]); err != nil || !strings.HasPrefix(string(line[:n]), "ready") {
		t.Fatalf("it says %q: %v", line[:n], err)
	}
	return cmd
}

// An exclusive GPU on which a process of no lease has a context is no lease's: a request is refused or waits, a condition names
// the process, and the GPU is open again when the process has ended.
func TestAnOccupiedGPUIsGrantedToNoLease(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	process := contextOn(t, n, games, "--gpu", "3")
	who := fmt.Sprintf("pid %d (gpusim-burn) of games uses GPU 3", process.Process.Pid)
	awaitStatus(t, n, "no condition names the process", func(s *api.Status) bool {
		return hasCondition(s, "unattributed", who) && hasCondition(s, "unattributed", "no lease gets what it uses until it ends")
	})
	r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true")
	if r.Code != 125 || !strings.Contains(r.Err, "a process of no lease uses it") || strings.Contains(r.Err, "games") {
		t.Errorf("a run is answered with %d: %s", r.Code, r.Err)
	}
	waiting, err := n.Run("-q", "-t", "red", "--grant", "whole", "--wait=1m", "--", "echo", "it runs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(waiting.Kill)
	awaitStatus(t, n, "it does not wait", func(s *api.Status) bool {
		return len(s.Leases) == 1 && s.Leases[0].State == "queued" && strings.Contains(s.Leases[0].Waiting, "a process of no lease uses it")
	})
	// Other places are not closed.
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "true"); r.Code != 0 {
		t.Errorf("an instance of another GPU: %d: %s", r.Code, r.Err)
	}
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // It was killed.
	if code := awaitEnd(t, waiting); code != 0 || !strings.Contains(waiting.Output(), "it runs") {
		t.Errorf("after the end of the process the run ends with %d: %s", code, waiting.Output())
	}
}

// With logins closed a process of no lease that only has the node of an exclusive GPU open, or the capability nodes of an instance, is
// killed. While its exit lasts, because root traces it, its place is no lease's; other places are.
func TestAnOpenDeviceClosesItsPlace(t *testing.T) {
	enumeration.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, closedLogins)
	instance := capabilityOf(t, n, "3g.20gb")
	for _, c := range []struct{ name, node, gpu, grant, other string }{
		{"an exclusive GPU", "nvidia3", "GPU 3", "whole", "cut"},
		{"an instance", instance, "GPU 0", "cut", "whole"},
		{"a partitioned GPU, no instance of it", "nvidia0", "GPU 0", "", "cut"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The daemon sees and kills the process when it is traced, not before.
			daemon := n.DaemonPID()
			if err := syscall.Kill(daemon, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(daemon, syscall.SIGCONT) })
			tracing.AwaitState(t, daemon, 'T')
			named := names(t, n, nobody, c.node) // It keeps its path after the other has ended.
			opener := watch(t, n, nobody, c.node)
			tracer := tracing.Run(t, tracing.Command(t, 0, tracing.Trace, opener.n))
			if err := syscall.Kill(daemon, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			who := fmt.Sprintf("pid %d (sleep) of ", opener.n)
			awaitStatus(t, n, "no condition names the process", func(s *api.Status) bool {
				return hasCondition(s, "unattributed", who) && hasCondition(s, "unattributed", "uses "+c.gpu+" without a lease")
			})
			run := func(grant string) harness.Result {
				return n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", grant, "--", "true")
			}
			closed := hasCondition(status(t, n), "unattributed", "no lease gets what it uses until it ends")
			if closed != (c.grant != "") {
				t.Errorf("it closes a place: %v", closed)
			}
			if c.grant != "" {
				if r := run(c.grant); r.Code != 125 || !strings.Contains(r.Err, "a process of no lease uses it") {
					t.Errorf("its place: a run is answered with %d: %s", r.Code, r.Err)
				}
			}
			if r := run(c.other); r.Code != 0 {
				t.Errorf("another place: a run is answered with %d: %s", r.Code, r.Err)
			}
			endTracer(t, tracer)
			<-opener.ended
			awaitStatus(t, n, "its condition lasts", func(s *api.Status) bool { return !hasCondition(s, "unattributed", who) })
			if c.grant == "" {
				return
			}
			if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", c.grant, "--wait=20s", "--", "true"); r.Code != 0 {
				t.Errorf("its place after its end: a run is answered with %d: %s", r.Code, r.Err)
			}
			if !named.alive() {
				t.Error("a process that only has the path of the device was ended")
			}
		})
	}
}

// The processes are read again before a lease starts: one may have come since the last sample. A process may get a lease of the
// GPU that it uses, in place.
func TestOccupiedSinceTheLastSample(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := newNode(t, quick)
	n.Settings = map[string]string{"converge_interval": "1h", "sample_interval": "1h"}
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, shared)
	process := contextOn(t, n, games, "--gpu", "3")
	r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true")
	if r.Code != 125 || !strings.Contains(r.Err, "GPU 3: a process of no lease uses it") {
		t.Errorf("a run is answered with %d: %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "lease", "attach", "--pid", fmt.Sprint(process.Process.Pid), "-t", "red", "--grant", "whole"); r.Code != 0 {
		t.Errorf("its own lease in place: %d: %s", r.Code, r.Err)
	}
}

// A run that waits, and whose place is found to be occupied only by the last look before its start, waits on.
func TestAWaitingRunFindsItsPlaceOccupied(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := newNode(t, quick)
	n.Settings = map[string]string{"converge_interval": "1h", "sample_interval": "1h"} // Only that look finds it.
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, shared)
	contextOn(t, n, games, "--gpu", "3")
	r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--wait=1s", "--", "true")
	if r.Code != 125 ||
		!strings.Contains(r.Err, "waited 1s; 1 exclusive GPU requested, 0 idle; GPU 3 is closed: a process of no lease uses it") {
		t.Errorf("a run that waits for a second is answered with %d: %s", r.Code, r.Err)
	}
}

// A lease that just ended delays the next one at most: no run is refused because of its processes.
func TestTheNextLeaseIsNotRefused(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	began := time.Now()
	for i := range 10 {
		job, id := begin(t, n, "red", "whole", n.Burn("--memory", "64MiB", "--hold")...)
		if err := job.AwaitLine(soon(t), "ready"); err != nil {
			t.Fatal(err)
		}
		if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
			t.Fatalf("run %d: %s", i, r.Err)
		}
		job.Kill()
	}
	t.Logf("10 leases took %v", time.Since(began).Round(time.Millisecond))
}
