package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/tracing"
)

// traceLease starts a lease of an ordinary user and a process outside of it that traces the lease's process.
func traceLease(t *testing.T, uid int) (n *harness.Node, job *harness.Job, id string, tracer tracing.Program) {
	t.Helper()
	n = escapeNode(t)
	job, id = begin(t, n, "red", "part", become+"sleep 600")
	err := harness.Await(soon(t), time.Millisecond, "the job is not its program yet", func() (bool, error) {
		return procfs.Name(job.PID()) == "sleep", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, job, id, tracing.Run(t, tracing.Command(t, uid, tracing.Trace, job.PID()))
}

// A lease ends although a tracer of its user, outside of it, keeps its process in its exit.
func TestStopOfATracedLease(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n, _, id, tracer := traceLease(t, 65534)
	began := time.Now()
	if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
		t.Fatalf("lease stop exited with %d: %s%s\n%s", r.Code, r.Out, r.Err, daemonLog(n))
	}
	t.Logf("it was stopped in %.1f s", time.Since(began).Seconds())
	<-tracer.Ended
	if l := leaseByID(status(t, n), id); l != nil {
		t.Errorf("the lease is still %s", l.State)
	}
	if got := conditionsOf(status(t, n), "lease-not-ended"); len(got) != 0 {
		t.Errorf("conditions: %q", got)
	}
}

// A tracer of root is not stopped: the stop fails in time and names it, a condition does so while it lasts, and the lease keeps its
// place until its process has exited.
func TestStopOfALeaseThatRootTraces(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n, job, id, tracer := traceLease(t, 0)
	began := time.Now()
	r := n.CLI(soon(t), "lease", "stop", id)
	want := fmt.Sprintf(
		"pid %d (sleep) was killed and has not exited: it is traced by pid %d (program) of root, which is not stopped", job.PID(),
		tracer.PID,
	)
	if r.Code != 5 || !strings.Contains(r.Err, want) || !strings.Contains(r.Err, fmt.Sprintf("kill -9 %d", tracer.PID)) {
		t.Fatalf("after %v lease stop exited with %d: %s%s", time.Since(began), r.Code, r.Out, r.Err)
	}
	s := status(t, n)
	if got := conditionsOf(s, "lease-not-ended"); len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("conditions: %q", got)
	}
	if l := leaseByID(s, id); l == nil || l.State != api.LeaseEnding {
		t.Errorf("the lease is %+v", l)
	}
	endTracer(t, tracer)
	err := harness.Await(soon(t), 10*time.Millisecond, "the lease does not end", func() (bool, error) {
		s := status(t, n)
		return leaseByID(s, id) == nil && len(conditionsOf(s, "lease-not-ended")) == 0, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A change that stops such a lease ends in time too. Its step says what it waits for while it lasts, and the error names it.
func TestForceOverALeaseThatRootTraces(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n, job, id, tracer := traceLease(t, 0)
	want := fmt.Sprintf(
		"pid %d (sleep) was killed and has not exited: it is traced by pid %d (program) of root, which is not stopped", job.PID(),
		tracer.PID,
	)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second) // grace 10 s, 15 s after SIGKILL
	defer cancel()
	began := time.Now()
	r := n.CLIIn(
		ctx, replaced(t, shared, "      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}\n", ""), "apply", "-f", "-",
		"--force",
	)
	t.Logf("after %.1f s apply exits with %d", time.Since(began).Seconds(), r.Code)
	if help := fmt.Sprintf(
		"end the tracer: 'kill -9 %d', then ", tracer.PID,
	); r.Code != api.ExitDegraded || !strings.Contains(r.Err, want) ||
		!strings.Contains(r.Err, help) {
		t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	waits := slices.IndexFunc(strings.Split(r.Out, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "  waits ") && strings.Contains(line, "stop lease "+id) && strings.Contains(line, want)
	})
	if waits < 0 {
		t.Errorf("its step does not say what it waits for: %s", r.Out)
	}
	if l := leaseByID(status(t, n), id); l == nil || l.State != api.LeaseEnding {
		t.Errorf("the lease is %+v", l)
	}
}

// A process of a lease in place that root traces: the stop fails in time and names the tracer, a condition does so until the
// process has exited, and then the lease ends without another stop.
func TestStopOfALeaseInPlaceThatRootTraces(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)
	p := startOutside(t, n, 65534, n.Burn("--gpu", "2", "--memory", "64MiB", "--hold")...)
	id := attach(t, n, "--pid", fmt.Sprint(p.pid()), "-t", "red", "--grant", "part")
	awaitOnGPU(t, n, 2, p.pid(), func(s api.ProcessStatus) bool { return s.Lease == id })
	tracer := tracing.Run(t, tracing.Command(t, 0, tracing.Trace, p.pid()))
	r := n.CLI(soon(t), "lease", "stop", id)
	want := fmt.Sprintf(
		"pid %d (gpusim-burn) was killed and has not exited: it is traced by pid %d (program) of root, which is not stopped", p.pid(),
		tracer.PID,
	)
	if r.Code != 5 || !strings.Contains(r.Err, want) || !strings.Contains(r.Err, fmt.Sprintf("kill -9 %d", tracer.PID)) {
		t.Fatalf("lease stop exited with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if got := conditionsOf(status(t, n), "lease-not-ended"); len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("conditions: %q", got)
	}
	if l := leaseByID(status(t, n), id); l == nil || l.State != api.LeaseEnding {
		t.Errorf("the lease is %+v", l)
	}
	endTracer(t, tracer)
	awaitStatus(t, n, "the lease does not end, or its condition lasts", func(s *api.Status) bool {
		return leaseByID(s, id) == nil && len(conditionsOf(s, "lease-not-ended")) == 0
	})
	<-p.done
}

// endTracer ends a tracer.
func endTracer(t *testing.T, tracer tracing.Program) {
	t.Helper()
	p, err := procfs.OpenPidfd(tracer.PID, tracer.Start)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Signal(t.Context(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// conditionsOf returns the messages of the conditions of a kind.
func conditionsOf(s *api.Status, kind string) []string {
	var out []string
	for _, c := range s.Node.Conditions {
		if c.Kind == kind {
			out = append(out, c.Message)
		}
	}
	return out
}
