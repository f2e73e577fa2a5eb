package node

import (
	"os"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
)

// The daemon is killed before and after it stops an unattributed process with --force. The next daemon resumes the change with
// its authority and stops no process twice.
func TestKilledWhileStoppingAnUnattributedProcess(t *testing.T) {
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
