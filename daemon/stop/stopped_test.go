package stop

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/tracing"
)

// handles ends with a code of its own when it gets SIGTERM.
const handles = "trap 'exit 7' TERM; echo; while :; do sleep 0.05; done"

// stopByUser stops a process as a user does by job control, and returns when it is stopped.
func stopByUser(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	limit, again := time.After(30*time.Second), time.NewTicker(time.Millisecond) // Only its parent gets an event of it.
	defer again.Stop()
	for {
		if s, err := procfs.Read(pid); err != nil || s.State == 'T' || s.State == 't' {
			return
		}
		select {
		case <-again.C:
		case <-limit:
			t.Fatalf("process %d does not stop", pid)
		}
	}
}

// neverKills is a grace that the test does not outlast: a process that is killed after it would not have handled SIGTERM.
const neverKills = time.Minute

// A process that its user has stopped handles SIGTERM all the same, in a scope with and without cgroups and in place.
func TestStoppedProcessesHandleTerm(t *testing.T) {
	inScope := func(port cgroup.Port) func(*testing.T, cgroup.Process) Target {
		return func(t *testing.T, p cgroup.Process) Target {
			if _, err := port.StartScope(
				t.Context(), cgroup.Scope{ID: "one", Slice: cgroup.SliceName{Tenant: "red", Grant: "part"}, Process: p},
			); err != nil {
				t.Fatal(err)
			}
			return &scope{port: port, id: "one", log: slog.New(slog.DiscardHandler)}
		}
	}
	for name, target := range map[string]func(*testing.T, cgroup.Process) Target{
		"in a cgroup":     func(t *testing.T, p cgroup.Process) Target { return inScope(treeOf(t))(t, p) },
		"without cgroups": inScope(cgroup.NewProcesses("a test")),
		"in place": func(t *testing.T, p cgroup.Process) Target {
			h, err := procfs.OpenPidfd(p.PID, p.Start)
			if err != nil {
				t.Fatal(err)
			}
			one := NewProcesses(h)
			t.Cleanup(one.Close)
			return one
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, ended := script(t, handles)
			what := target(t, p)
			stopByUser(t, p.PID)
			ctx, cancel := context.WithTimeout(t.Context(), neverKills/2)
			defer cancel()
			if err := (&Escalation{Target: what}).Run(ctx, neverKills); err != nil {
				t.Fatal(err)
			}
			if code := (<-ended).ExitCode(); code != 7 {
				t.Errorf("it ended with %d, want 7", code)
			}
		})
	}
}

// A tracer that is stopped ends by its SIGTERM, not by the SIGKILL after it.
func TestStoppedTracersHandleTerm(t *testing.T) {
	t.Parallel()
	uid := asUser(t)
	p := tracing.Run(t, tracing.Command(t, uid, tracing.Large))
	cmd := tracing.Command(t, uid, tracing.TraceUntilTerm, append(tracing.Others(t, p.PID), p.PID)...)
	tracer := tracing.Run(t, cmd)
	stopByUser(t, tracer.PID)
	of := cgroup.Process{PID: p.PID, Start: p.Start}
	var x tracers
	x.stop(t.Context(), []cgroup.Process{of})
	select {
	case <-tracer.Ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it did not handle SIGTERM")
	}
	if got := endedBy(cmd.ProcessState); got != syscall.SIGTERM {
		t.Errorf("it ended by %v", got)
	}
}
