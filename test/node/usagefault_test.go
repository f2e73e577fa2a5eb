package node

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// The daemon is killed at each point of a writing of the account: of the one at its start and of the one for a new lease.
// Afterwards each lease is counted once, with all its time, and the account adds up.
func TestAccountAtEveryFaultPoint(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := newNode(t, quick)
	n.Bin = buildWithFaults(t)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, small)
	first := time.Now()
	jobs := map[string]*harness.Job{}
	times := map[string]leaseTimes{}
	enter := func() {
		at := time.Now()
		job, id := begin(t, n, "red", "part", n.Burn("--memory", "64MiB", "--kernel", "5ms", "--queue", "4")...)
		jobs[id], times[id] = job, leaseTimes{at, time.Now()}
	}
	enter()
	err := harness.Await(soon(t), 100*time.Millisecond, "nothing is measured", func() (bool, error) {
		x := &usage(t, n).Total
		return x.BusySeconds > 1_000 && x.GPUMemoryGiBSeconds > 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n.StopDaemon() // It writes what it has.
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	before := usage(t, n, "--by", "lease")
	for _, c := range []struct {
		point string
		nth   int // writing of the run
	}{{"append", 1}, {"append", 2}, {"written", 1}, {"written", 2}, {"replace", 1}, {"replaced", 1}} {
		where := fmt.Sprintf("%s %d", c.point, c.nth)
		stamp := filepath.Join(t.TempDir(), "stamp")
		n.KillDaemon()
		n.Env = []string{fmt.Sprintf("GPUSHARE_FAULT=ledger.%s:kill@%d", c.point, c.nth), "GPUSHARE_FAULT_STAMP=" + stamp}
		earlier := accountRuns(t, n)
		err := n.StartDaemon(soon(t))
		if _, killed := os.Stat(stamp); err != nil && killed != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if c.nth > 1 {
			// A lease that starts before the first writing is in that one, and the next comes when the minute is over.
			first := func() (bool, error) { return !maps.Equal(earlier, accountRuns(t, n)), nil }
			if err := harness.Await(soon(t), 10*time.Millisecond, "the account is not written at the start", first); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			enter()
		}
		select {
		case <-n.DaemonDone():
		case <-soon(t).Done():
			t.Fatalf("%s: the daemon was not killed\n%s", where, daemonLog(n))
		}
		if _, err := os.Stat(stamp); err != nil {
			t.Fatalf("%s: %v\n%s", where, err, daemonLog(n))
		}
		n.Env = nil
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		queried := time.Now()
		after := usage(t, n, "--by", "lease")
		checkKept(t, before, after, 0)
		checkCounted(t, where, after, times, 0)
		for i := range after.Rows {
			r := &after.Rows[i]
			if least := queried.Sub(times[r.Lease].running) - 50*time.Millisecond; int64(r.HeldSeconds) < least.Milliseconds() {
				t.Errorf("%s: %s had its GPU for %s s, and ran for %v", where, r.Lease, r.HeldSeconds, least)
			}
		}
		t.Logf("%s: %d leases, %v after the first", where, len(times), time.Since(first).Round(time.Millisecond))
	}
	for _, job := range jobs {
		job.Kill()
	}
	var last *api.Usage
	err = harness.Await(soon(t), 50*time.Millisecond, "a lease has not ended in the account", func() (bool, error) {
		last = usage(t, n, "--by", "lease")
		return last.Total.LeasesEnded == int64(len(jobs)), nil
	})
	if err != nil {
		t.Fatalf("%v: %+v", err, last)
	}
	checkCounted(t, "at the end", last, times, 1)
	n.StopDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("all have ended %v after the first", time.Since(first).Round(time.Millisecond))
	again := usage(t, n, "--by", "lease")
	checkKept(t, last, again, 0)
	checkCounted(t, "after a restart", again, times, 1)
	if again.Total.HeldSeconds != last.Total.HeldSeconds || again.Total.BusySeconds != last.Total.BusySeconds {
		t.Errorf("after a restart: %+v, before it %+v", again.Total, last.Total)
	}
}

// accountRuns returns the runs of the daemon that have a record in the files of the account: the first writing of a run has one.
func accountRuns(t *testing.T, n *harness.Node) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.Dir, "state", "ledger", "usage-[0-9]*.log"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the account has no files: %v", err)
	}
	runs := map[string]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"k":"run".*"r":"([^"]+)"`).FindAllSubmatch(b, -1) {
			runs[string(m[1])] = true
		}
	}
	return runs
}

// leaseTimes is when a lease was requested, and when it was seen to run.
type leaseTimes struct{ requested, running time.Time }

// checkCounted checks that the account has each lease once, and no more than what it can have used since its request.
func checkCounted(t *testing.T, where string, u *api.Usage, times map[string]leaseTimes, ended int64) {
	t.Helper()
	checkSums(t, u)
	if len(u.Rows) != len(times) || u.LostRecords != 0 {
		t.Errorf("%s: %d leases and %d lost records, want %d and none", where, len(u.Rows), u.LostRecords, len(times))
	}
	for i := range u.Rows {
		r := &u.Rows[i]
		lease, ok := times[r.Lease]
		lasted := api.Thousandths(time.Since(lease.requested).Milliseconds())
		if !ok || r.LeasesStarted != 1 || r.LeasesEnded != ended {
			t.Errorf("%s: %s started %d times and ended %d times", where, r.Lease, r.LeasesStarted, r.LeasesEnded)
		}
		if r.HeldSeconds > lasted {
			t.Errorf("%s: %s had its GPU for %s of %s s", where, r.Lease, r.HeldSeconds, lasted)
		}
		if r.BusyMeasuredSeconds > r.HeldSeconds || r.BusySeconds > r.BusyMeasuredSeconds || r.OccupancySeconds > r.HeldSeconds {
			t.Errorf(
				"%s: %s was busy for %s s of %s s, and occupied its GPU for %s of %s s", where, r.Lease, r.BusySeconds,
				r.BusyMeasuredSeconds, r.OccupancySeconds, r.HeldSeconds,
			)
		}
	}
}
