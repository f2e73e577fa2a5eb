package node

import (
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

// An XID of a program is its lease's, found by the pid in the kernel's log, and its GPU stays open. An XID of the hardware closes
// one GPU to new leases, also over a kill of the daemon; another GPU takes leases, and after a reset the GPU opens when its readings are good.
func TestXIDsOfProgramsAndOfTheHardware(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, small)
	job, id := begin(t, n, "red", "part", n.Burn("--memory", "64MiB", "--hold")...)
	awaitStatus(
		t, n, "the lease does not use the GPU", func(s *api.Status) bool { l := findLease(s, id); return l != nil && l.Processes > 0 },
	)
	events := follow(t, n)
	if err := n.Ctl(soon(t), nil, "xid", "2", "31", "--pid", strconv.Itoa(job.PID()), "--name", "gpusim-burn"); err != nil {
		t.Fatal(err)
	}
	if e := events.await(t, "gpu.xid", id); !strings.Contains(e.Message, "31") {
		t.Errorf("the event of an XID of a program: %+v", e)
	}
	if g := status(t, n).GPUs[2]; g.State != "ok" || g.Health == nil || g.Health.State != "ok" {
		t.Errorf("after an XID of a program the GPU is %s, %+v", g.State, g.Health)
	}

	if err := n.Ctl(soon(t), nil, "xid", "3", "95"); err != nil {
		t.Fatal(err)
	}
	unhealthy := func(s *api.Status) bool {
		return s.GPUs[3].State == "unhealthy" && strings.Contains(s.GPUs[3].Health.Reason, "95")
	}
	awaitStatus(t, n, "the GPU is not closed", unhealthy)
	closed := status(t, n).GPUs[3].Health.Since
	refused := func(what string) {
		t.Helper()
		if r := n.CLI(soon(t), "run", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 125 || !strings.Contains(r.Err, "XID 95") {
			t.Errorf("%s a lease of the closed GPU: %+v", what, r)
		}
	}
	refused("after the XID")
	if r := n.CLI(soon(t), "run", "-t", "blue", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("a lease of another GPU: %+v", r)
	}
	if r := n.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "gpushare gpu retry 3") {
		t.Errorf("the doctor does not say what opens it:\n%s", r.Out)
	}
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "the GPU is not closed after a restart", unhealthy)
	if now := status(t, n).GPUs[3].Health.Since; closed == nil || now == nil || !now.Equal(*closed) {
		t.Errorf("closed since %v, after a restart since %v", closed, now)
	}
	refused("after a restart")

	// The driver says that it needs a reset, so a retry does not open it. A reset does, without a command.
	if r := n.CLI(soon(t), "gpu", "retry", "3"); !strings.Contains(r.Out+r.Err, "reset") {
		t.Errorf("retry before a reset: %+v", r)
	}
	refused("after a retry")
	n.StopDaemon() // A GPU that a process has open is not reset.
	if err := n.Ctl(soon(t), nil, "reset", "3"); err != nil {
		t.Fatal(err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "the GPU does not open", func(s *api.Status) bool { return s.GPUs[3].State == "ok" })
	if r := n.CLI(soon(t), "run", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 0 {
		t.Errorf("a lease of the GPU after its test: %+v", r)
	}
	if s := status(t, n); findLease(s, id) == nil {
		t.Error("the running lease ended")
	}
}
