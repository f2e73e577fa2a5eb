package node

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/quota"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/tracing"
)

// unequal has two grants of one GPU. A lease that cannot be frozen is stopped.
const unequal = `version: v1
node: {enforce: on, isolation: {unfrozen: stop}}
gpus:
  - {select: {index: 2}, mode: timeslice}
tenants:
  - name: red
    grants: [{name: part, timeslice: {share: 10%, gpu_memory: 1GiB}}]
  - name: blue
    grants: [{name: part, timeslice: {share: 90%, gpu_memory: 1GiB}}]
`

// A process in a lease that keeps the kernel from reporting the lease as frozen, because its execve waits for a traced thread, gives
// the lease no more time of the GPU: it is frozen as before, shown so, and not stopped.
func TestALeaseThatTheKernelDoesNotReportAsFrozen(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)
	apply(t, n, unequal)
	burn := func(tenant string) string {
		_, id := begin(
			t, n, tenant, "part",
			strings.Join(n.Burn("--memory", "100MiB", "--kernel", "10ms", "--queue", "2", "--seconds", "120"), " "),
		)
		return id
	}
	red := burn("red")
	burn("blue")

	decoy := tracing.Run(t, tracing.Command(t, 0, tracing.ExecOnInput))
	leaf := filepath.Join(unified(t), leaseByID(status(t, n), red).Isolation.Cgroup)
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(decoy.PID)), 0o600); err != nil {
		t.Fatal(err)
	}
	tracing.Run(t, tracing.Command(t, 0, tracing.Trace, tracing.Others(t, decoy.PID)...))
	decoy.CloseInput()
	tracing.AwaitState(t, decoy.PID, 'D')

	began := time.Now()
	var share *api.LeaseShare
	awaitStatus(t, n, "its share is not measured", func(s *api.Status) bool {
		l := leaseByID(s, red)
		if l == nil || l.Share == nil {
			return false
		}
		share = l.Share
		return share.OfUsed != nil && time.Since(began) > 14*time.Second // The window of the measurement is 10 s.
	})
	t.Logf("it has %.1f %% of the used time, %+v", *share.OfUsed, *share)
	if *share.OfUsed > 25 || !share.Enforced {
		t.Errorf(
			"it has %.1f %% of the used time instead of 10 %%; enforced: %v %s\n%s", *share.OfUsed, share.Enforced, share.Reason,
			daemonLog(n),
		)
	}
	if got := conditionsOf(status(t, n), "lease-not-frozen"); len(got) != 0 {
		t.Errorf("conditions: %q", got)
	}
	if l := leaseByID(status(t, n), red); l == nil || l.State != api.LeaseRunning {
		t.Errorf("the lease is %+v", l)
	}
}

// A lease whose programs run although it is frozen, because another program with the right to do so thaws it each time, is stopped:
// isolation.unfrozen says so. Its neighbour is not.
func TestALeaseThatOthersThawIsStopped(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	apply(t, n, unequal)
	events := follow(t, n)
	burn := strings.Join(n.Burn("--memory", "100MiB", "--kernel", "10ms", "--queue", "2", "--seconds", "300"), " ")
	// Its loops have a processor whatever else the host does, so that it is seen to run: one before all others, and one for the
	// twentieth of each second that the kernel leaves to programs without a real-time priority.
	_, red := begin(t, n, "red", "part", `sh -c "chrt -f 1 sh -c 'while :; do :; done' & sh -c 'while :; do :; done' & exec `+burn+`"`)
	t.Cleanup(func() { // The loops do not end with the job.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		n.CLI(ctx, "lease", "stop", red)
	})
	_, blue := begin(t, n, "blue", "part", burn)
	tracing.Run(t, tracing.ThawCommand(t, filepath.Join(unified(t), leaseByID(status(t, n), red).Isolation.Cgroup, "cgroup.freeze")))
	// A slice in which it was not seen to run is no offence, and may be one of the three before the pause of a minute: the promise is
	// that three within quota.UnfrozenWithin end it.
	ctx, cancel := context.WithTimeout(t.Context(), quota.UnfrozenWithin)
	defer cancel()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(daemonLog(n))
		}
	})
	events.awaitUntil(ctx, t, "lease.ended", red)
	all, err := n.Client().Leases(soon(t), true)
	if err != nil {
		t.Fatal(err)
	}
	if l := leaseByID(&api.Status{Leases: all}, red); l == nil ||
		!strings.Contains(l.Reason, "it could not be frozen (isolation.unfrozen: stop)") {
		t.Errorf("it ended: %+v\n%s", l, daemonLog(n))
	}
	if l := leaseByID(status(t, n), blue); l == nil || l.State != api.LeaseRunning {
		t.Errorf("its neighbour is %+v\n%s", l, daemonLog(n))
	}
}
