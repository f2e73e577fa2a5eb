package node

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// The daemon is killed before and after it stops an unattributed process with --force. The next daemon resumes the change with
// its authority and stops no process twice.
func TestKilledWhileStoppingAnUnattributedProcess(t *testing.T) {
	enumeration.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	binaries := buildWithFaults(t)
	other := replaced(t, shared, "layout: [3g.20gb, 1g.5gb]", "layout: [7g.40gb]")
	other = replaced(t, other, "mig: 3g.20gb}", "mig: 7g.40gb}")
	for _, place := range []string{"engine.before-do.process.stop", "engine.after-do.process.stop"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, quick)
			n.Bin, n.Env = binaries, []string{"GPUSHARE_FAULT=" + place + ":kill"}
			if err := n.Start(soon(t)); err != nil {
				t.Fatal(err)
			}
			apply(t, n, shared)
			was := truth(t, n)
			m := watch(t, n, 65534, capabilityOf(t, n, "3g.20gb"))
			res, err := n.Client().Apply(soon(t), []byte(other), client.ApplyOptions{Force: true})
			if err == nil && res.Operation != nil {
				_, err = n.Client().Follow(soon(t), res.Operation, func(*api.Operation) {})
			}
			if err == nil {
				t.Fatal("the daemon was not killed")
			}
			awaitKill(t, n)
			if got := truth(t, n); got != was || m.alive() != strings.Contains(place, "before") {
				t.Errorf("when it was killed the monitor ran: %v, and the node had %s", m.alive(), got)
			}
			n.Env = nil
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
			explained(t, awaitChange(t, n), "after the kill")
			if got := truth(t, n); m.alive() || got == was {
				t.Errorf("the change was not resumed: the monitor runs: %v, the node has %s\n%s", m.alive(), got, daemonLog(n))
			}
		})
	}
}

// Without a service manager units cannot be stopped. The plan says so if it matters, and doctor always.
func TestQuiesceWithoutAServiceManager(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	spec := replaced(t, shared, "enforce: on", "enforce: on, quiesce: [nvidia-dcgm.service]")
	r := n.CLIIn(soon(t), spec, "apply", "-f", "-")
	if r.Code != 0 || !strings.Contains(r.Out+r.Err, "stopping units needs systemd") {
		t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "nvidia-dcgm.service") || !strings.Contains(r.Out, "this needs systemd") {
		t.Errorf("doctor says:\n%s", r.Out)
	}
	if r := n.CLIIn(soon(t), replaced(t, spec, "share: 30%", "share: 20%"), "apply", "-f", "-"); r.Code != 0 ||
		strings.Contains(r.Out+r.Err, "stopping units") {
		t.Errorf("a change without MIG steps exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// A stop that was begun goes on to its end, although its caller leaves, or the daemon is killed. The program ignores SIGTERM.
func TestAStopGoesOnWithoutItsCaller(t *testing.T) {
	enumeration.Long(t)
	for name, leave := range map[string]func(t *testing.T, n *harness.Node, cancel func()){
		"its caller leaves": func(_ *testing.T, _ *harness.Node, cancel func()) { cancel() },
		"the daemon is killed": func(t *testing.T, n *harness.Node, _ func()) {
			n.KillDaemon()
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, quick)
			apply(t, n, shared)
			job, id := begin(t, n, "red", "part", "env --ignore-signal=TERM sh -c 'echo ignores; exec sleep 600'")
			if err := job.AwaitLine(soon(t), "ignores"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(soon(t))
			defer cancel()
			answered := make(chan error, 1)
			go func() { answered <- n.Client().StopLease(ctx, id) }()
			awaitStatus(t, n, "the lease is being stopped", func(s *api.Status) bool { return leaseByID(s, id).State == api.LeaseEnding })
			leave(t, n, cancel)
			if err := <-answered; err == nil {
				t.Fatal("the stop was answered")
			}
			awaitStatus(t, n, "the lease goes on", func(s *api.Status) bool { return leaseByID(s, id) == nil })
			select {
			case <-job.Done():
			case <-soon(t).Done():
				t.Error("its command runs")
			}
		})
	}
}
