package node

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/harness"
)

// stopByUser stops a process as a user does by job control, and returns when it is stopped.
func stopByUser(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := harness.Await(soon(t), time.Millisecond, "it does not stop", func() (bool, error) {
		s, err := procfs.Read(pid)
		return err == nil && s.State == 'T', err
	}); err != nil {
		t.Fatal(err)
	}
}

// A lease whose processes were stopped by their user gets its SIGTERM and its grace, whatever kind of lease it is.
func TestStopOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	const script = "trap 'echo asked; exit 7' TERM; echo ready.; while :; do sleep 0.05; done"
	stop := func(t *testing.T, id string, pid int) {
		t.Helper()
		stopByUser(t, pid)
		if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
			t.Fatalf("lease stop exits with %d: %s", r.Code, r.Err)
		}
	}
	t.Run("of a terminal", func(t *testing.T) {
		job, err := n.Run("-t", "red", "--grant", "part", "--", "sh", "-c", `echo "lease=$GPUSHARE_LEASE."; `+script)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		if err := job.AwaitLine(soon(t), "ready."); err != nil {
			t.Fatal(err)
		}
		stop(t, leaseOf(job), job.PID())
		if code := awaitEnd(t, job); code != 7 || !strings.Contains(job.Output(), "asked") {
			t.Errorf("it ended with %d: %s", code, job.Output())
		}
	})
	t.Run("detached", func(t *testing.T) {
		id := detach(t, n, script, "-t", "red", "--grant", "part")
		awaitLogs(t, n, id, "ready.\n")
		stop(t, id, leaseByID(status(t, n), id).PID)
		if l := awaitResult(t, n, id); l.Result != "exited with 7" {
			t.Errorf("it ended as %q", l.Result)
		}
	})
}
