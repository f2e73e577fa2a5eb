package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// urgent has two exclusive GPUs, a tenant whose leases may be stopped, one whose may not, and one of a high priority.
const urgent = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [2, 3]}, mode: exclusive}
tenants:
  - name: batch
    priority: low
    preempt: stop
    grants:
      - {name: one, exclusive: 1, max_leases: 2}
  - name: steady
    priority: low
    grants:
      - {name: one, exclusive: 1}
  - name: vision
    priority: high
    grants:
      - {name: one, exclusive: 1, max_leases: 2}
`

// A request of a higher priority that waits gets the place of the youngest lease that may be stopped, and no other is.
func TestPreemption(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, urgent)
	steady, steadyID := begin(t, n, "steady", "one", "sleep", "60")
	_ = steady
	batch, batchID := begin(t, n, "batch", "one", "sleep", "60")

	// A request that does not wait stops nothing.
	if r := n.CLI(soon(t), "run", "-t", "vision", "--", "true"); r.Code != 125 || leaseByID(status(t, n), batchID) == nil {
		t.Fatalf("a request that does not wait exits with %d: %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "explain", batchID); !strings.Contains(
		r.Out, "it may be stopped for a request of a tenant with a higher priority",
	) {
		t.Errorf("explain says:\n%s", r.Out)
	}
	job, err := n.Run("-t", "vision", "--wait", "--", "sh", "-c", "echo got it; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "got it"); err != nil {
		t.Fatal(err)
	}
	if out := job.Output(); !strings.Contains(out, "1 lease of a lower priority to end: preempted") || strings.Contains(out, "batch") {
		t.Errorf("the request was shown:\n%s", out)
	}
	if code := awaitEnd(t, batch); code == 0 {
		t.Errorf("the lease that was stopped exits with %d", code)
	}
	s := status(t, n)
	if leaseByID(s, steadyID) == nil || leaseByID(s, batchID) != nil || harness.Lease(s, "vision", "one") == nil {
		t.Errorf("the leases are %+v", s.Leases)
	}
	var audit strings.Builder
	files, err := filepath.Glob(filepath.Join(n.Dir, "*", "audit", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no audit: %v", err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		audit.Write(b)
	}
	if !strings.Contains(audit.String(), "lease "+batchID+" of tenant batch (low priority") ||
		!strings.Contains(audit.String(), "of tenant vision (high priority") {
		t.Errorf("the audit has:\n%s", audit.String())
	}
	if r := n.CLI(
		soon(t), "lease", "show", batchID,
	); !strings.Contains(r.Out, "a request of a higher priority needs its place (preempt: stop)") ||
		strings.Contains(r.Out, "vision") {
		t.Errorf("the lease that was stopped says:\n%s", r.Out)
	}
	// The other tenant does not allow it: the next request waits.
	waits, err := n.Run("-t", "vision", "--wait=1s", "--", "true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(waits.Kill)
	if code := awaitEnd(t, waits); code != 125 {
		t.Errorf("the second request exits with %d: %s", code, waits.Output())
	}
	if leaseByID(status(t, n), steadyID) == nil {
		t.Error("a lease was stopped whose tenant does not allow it")
	}
}

// A node that only observes stops nothing, and says what it would stop.
func TestPreemptionIsOnlyReportedWhenObserving(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, replaced(t, urgent, "index: [2, 3]", "index: 2"))
	_, id := begin(t, n, "batch", "one", "sleep", "60")
	observing := replaced(t, replaced(t, urgent, "index: [2, 3]", "index: 2"), "enforce: on", "enforce: observe")
	if r := n.CLIIn(soon(t), observing, "apply", "-f", "-", "--force"); r.Code != 0 { // It ends the enforcement of a lease.
		t.Fatalf("apply exited with %d: %s%s", r.Code, r.Out, r.Err)
	}
	job, err := n.Run("-t", "vision", "--wait", "--", "true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	s := awaitStatus(t, n, "the request does not wait", func(s *api.Status) bool {
		for _, l := range s.Leases {
			if l.State == api.LeaseQueued && strings.Contains(l.Waiting, "it would be placed after 1 lease of a lower priority") {
				return true
			}
		}
		return false
	})
	if leaseByID(s, id) == nil {
		t.Error("the lease was stopped")
	}
}
