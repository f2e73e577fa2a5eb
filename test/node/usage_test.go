package node

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// idling is a node with grants that stop idle leases, as soon as a spec can say.
const idling = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: exclusive}
tenants:
  - name: red
    grants:
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}, idle: {after: 10s, do: stop}}
      - {name: whole, exclusive: 1, idle: {after: 10s, do: stop}}
  - name: blue
    grants:
      - {name: part, timeslice: {share: 40%, gpu_memory: 8GiB}, idle: {after: 10s, do: stop}}
`

// usage reads the account.
func usage(t *testing.T, n *harness.Node, args ...string) *api.Usage {
	t.Helper()
	r := n.CLI(soon(t), append([]string{"usage", "--json"}, args...)...)
	u := new(api.Usage)
	if err := json.Unmarshal([]byte(r.Out), u); r.Code != 0 || err != nil {
		t.Fatalf("usage exits with %d, %v: %s%s", r.Code, err, r.Out, r.Err)
	}
	return u
}

// An idle lease is warned and then stopped; a busy one is neither. The account has what each used, over a kill of the daemon,
// and adds up.
func TestAccountAndIdleLeases(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, idling)
	events := follow(t, n)
	began := time.Now()
	busy, busyID := begin(t, n, "blue", "part", n.Burn("--memory", "1GiB", "--kernel", "5ms", "--queue", "4")...)
	alone, aloneID := begin(t, n, "red", "whole", n.Burn("--memory", "2GiB", "--kernel", "5ms", "--queue", "4")...)
	_, idleID := begin(t, n, "red", "part", n.Burn("--memory", "2GiB", "--hold")...)
	awaitStatus(t, n, "memory of all three", func(s *api.Status) bool {
		for id, gib := range map[string]uint64{busyID: 1, aloneID: 2, idleID: 2} {
			if l := leaseByID(s, id); l == nil || l.GPUMemory == nil || l.GPUMemory.Used < gib<<30 {
				return false
			}
		}
		return true
	})
	// A lease is held before its program has started and allocated.
	allocated := time.Since(began)
	detached := detach(t, n, "exit 3", "-t", "red", "--grant", "part")
	events.await(t, "lease.ended", detached)
	if e := events.await(t, "lease.idle", idleID); !strings.Contains(e.Message, "it has not used its GPU for 10s") ||
		!strings.Contains(e.Message, "it is stopped in 10s unless it does") {
		t.Errorf("the warning says %q", e.Message)
	}
	if e := events.await(t, "lease.stopping", idleID); !strings.Contains(e.Message, "idle.do: stop") {
		t.Errorf("the event lacks the reason: %q", e.Message)
	}
	events.await(t, "lease.ended", idleID)
	if lasted := time.Since(began); lasted < 20*time.Second {
		t.Errorf("the idle lease was stopped after %s", lasted)
	}
	for name, job := range map[string]*harness.Job{busyID: busy, aloneID: alone} {
		select {
		case <-job.Done():
			t.Errorf("%s ended: %s", name, job.Output())
		default:
		}
		if l := leaseByID(status(t, n), name); l == nil || len(l.Notices) > 0 || l.IdleSeconds == nil || *l.IdleSeconds > 0 ||
			slices.ContainsFunc(l.Isolation.NotEnforced, func(s string) bool { return strings.HasPrefix(s, "idle") }) {
			t.Errorf("%s: %+v", name, l)
		}
	}
	before := usage(t, n, "--by", "lease")
	n.StopDaemon() // It writes what it has.
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	checkKept(t, before, usage(t, n, "--by", "lease"), 0)
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	checkKept(t, before, usage(t, n, "--by", "lease"), 60_000)
	after := usage(t, n, "--by", "lease,gpu,user,tenant")
	checkSums(t, after)
	if after.Total.BusyStdErrorSeconds <= 0 {
		t.Errorf("the busy time of two leases that shared a GPU has no error: %+v", after.Total)
	}
	rows := map[string]*api.UsageRow{}
	for i := range after.Rows {
		r := &after.Rows[i]
		rows[r.Lease] = r
		if r.Tenant == "" || r.User == "" || !strings.HasPrefix(r.GPU, "GPU-") {
			t.Errorf("a row lacks a key: %+v", r)
		}
	}
	if len(rows) != 4 || after.Total.LeasesStarted != 4 || after.Total.LeasesEnded != 2 || after.Total.ExitCodes["3"] != 1 ||
		after.LostRecords != 0 {
		t.Fatalf("the account has %+v", after)
	}
	for _, c := range []struct {
		id          string
		least, most float64 // busy, of the time for which it is known
		gib         float64
	}{{busyID, 0.5, 1, 1}, {aloneID, 0.8, 1, 2}, {idleID, 0, 0.01, 2}} {
		r := rows[c.id]
		part := float64(r.BusySeconds) / float64(max(1, r.BusyMeasuredSeconds))
		if r.HeldSeconds < 19_000 || r.BusyMeasuredSeconds > r.HeldSeconds || r.BusyMeasuredSeconds < 10_000 || part < c.least ||
			part > c.most {
			t.Errorf("%s: busy for %s of %s s, held for %s s", c.id, r.BusySeconds, r.BusyMeasuredSeconds, r.HeldSeconds)
		}
		least := 0.9 * c.gib * float64(
			r.GPUMemoryMeasuredSeconds-min(r.GPUMemoryMeasuredSeconds, api.Thousandths(allocated.Milliseconds())),
		)
		most := 1.5 * c.gib * float64(r.GPUMemoryMeasuredSeconds)
		memory := float64(r.GPUMemoryGiBSeconds)
		if r.GPUMemoryMeasuredSeconds < 5_000 || r.GPUMemoryMeasuredSeconds > r.HeldSeconds || memory < least || memory > most ||
			float64(r.GPUMemoryPeak) < c.gib*(1<<30) {
			t.Errorf("%s: %s GiB·s in %s s, at most %d bytes", c.id, r.GPUMemoryGiBSeconds, r.GPUMemoryMeasuredSeconds, r.GPUMemoryPeak)
		}
	}
	if r := rows[aloneID]; r.OccupancySeconds != r.HeldSeconds {
		t.Errorf("%s has its GPU alone: occupied for %s of %s s", aloneID, r.OccupancySeconds, r.HeldSeconds)
	}
	checkEnded(t, n, idleID, detached)
	r := n.CLI(soon(t), "usage", "--by", "tenant", "--csv")
	table, err := csv.NewReader(strings.NewReader(r.Out)).ReadAll()
	if r.Code != 0 || err != nil || len(table) != 3 || table[1][0] != "blue" || table[2][0] != "red" {
		t.Errorf("the CSV: %v, %q", err, r.Out)
	}
	checkPlot(t, n)
	if r := n.CLI(soon(t), "usage", "--since", "9000d"); r.Code != api.ExitUsage || !strings.Contains(r.Err, "write 1m to 435d") {
		t.Errorf("9000 days: %d, %s", r.Code, r.Err)
	}
}

// checkPlot checks that the steps have what the rows have, and that the installed programs draw them.
func checkPlot(t *testing.T, n *harness.Node) {
	t.Helper()
	u := usage(t, n, "--step", "1h", "--since", "2h")
	var held api.Thousandths
	for _, s := range u.Steps {
		for _, r := range s.Rows {
			held += r.HeldSeconds
		}
	}
	if held != u.Total.HeldSeconds || held == 0 || u.StepSeconds != 3600 {
		t.Errorf("the steps of %d s have %s s, the total %s s", u.StepSeconds, held, u.Total.HeldSeconds)
	}
	if r := n.CLI(
		soon(t), "usage", "--plot", "--since", "1d",
	); r.Code != 0 || !strings.Contains(r.Out, "GPU memory (GiB)") || !strings.Contains(r.Out, "  red ") ||
		!strings.ContainsAny(r.Out, "▁▂▃▄▅▆▇█") {
		t.Errorf("the plot: %d, %s%s", r.Code, r.Out, r.Err)
	}
	file := filepath.Join(t.TempDir(), "day.svg")
	if r := n.CLI(soon(t), "usage", "--since", "1d", "--plot", file); r.Code != 0 || r.Out != "" {
		t.Errorf("the image: %d, %s%s", r.Code, r.Out, r.Err)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), ">red</text>") || !strings.Contains(string(b), "</svg>") {
		t.Errorf("the image has %d bytes: %v", len(b), err)
	}
}

// checkKept checks that nothing is missing but so much busy time and GPU memory.
func checkKept(t *testing.T, before, after *api.Usage, loss api.Thousandths) {
	t.Helper()
	for i := range before.Rows {
		b := &before.Rows[i]
		at := slices.IndexFunc(after.Rows, func(r api.UsageRow) bool { return r.Lease == b.Lease })
		if at < 0 {
			t.Errorf("%s has no row any more", b.Lease)
			continue
		}
		if a := &after.Rows[at]; a.HeldSeconds < b.HeldSeconds || a.BusySeconds < b.BusySeconds-loss ||
			a.GPUMemoryGiBSeconds < b.GPUMemoryGiBSeconds-2*loss ||
			a.LeasesStarted != b.LeasesStarted ||
			a.LeasesEnded != b.LeasesEnded {
			t.Errorf("%s before the restart: %+v, and after it: %+v", b.Lease, b, a)
		}
	}
}

// checkSums checks that the rows add up to the total.
func checkSums(t *testing.T, u *api.Usage) {
	t.Helper()
	var sum api.UsageRow
	for i := range u.Rows {
		r := &u.Rows[i]
		sum.HeldSeconds += r.HeldSeconds
		sum.OccupancySeconds += r.OccupancySeconds
		sum.BusySeconds += r.BusySeconds
		sum.GPUMemoryGiBSeconds += r.GPUMemoryGiBSeconds
		sum.QueueWaitSeconds += r.QueueWaitSeconds
		sum.LeasesStarted += r.LeasesStarted
	}
	if x := &u.Total; sum.HeldSeconds != x.HeldSeconds || sum.OccupancySeconds != x.OccupancySeconds || sum.BusySeconds != x.BusySeconds ||
		sum.GPUMemoryGiBSeconds != x.GPUMemoryGiBSeconds || sum.QueueWaitSeconds != x.QueueWaitSeconds || sum.LeasesStarted != x.LeasesStarted {
		t.Errorf("the rows add up to %+v, the total is %+v", sum, *x)
	}
}

// checkEnded checks the list of ended leases, of which one was stopped and the other ended with 3.
func checkEnded(t *testing.T, n *harness.Node, stopped, detached string) {
	t.Helper()
	r := n.CLI(soon(t), "lease", "list", "--since", "1h", "--json")
	var list api.LeaseList
	if err := json.Unmarshal([]byte(r.Out), &list); r.Code != 0 || err != nil {
		t.Fatalf("lease list --since exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	states := map[string]string{}
	for i := range list.Leases {
		l := &list.Leases[i]
		states[l.ID] = l.State
		if l.State != api.LeaseEnded {
			continue
		}
		if l.Started == nil || l.Ended == nil || l.ElapsedSeconds == nil || len(l.Command) == 0 || l.Grant != "part" ||
			l.Kind != api.ModeTimeslice ||
			len(l.GPUs) != 1 {
			t.Errorf("an ended lease: %+v", l)
			continue
		}
		switch l.ID {
		case stopped:
			if !strings.Contains(l.Reason, "idle.do: stop") || *l.ElapsedSeconds < 19_000 || l.GPUMemory == nil ||
				*l.GPUMemory.Peak < 2<<30 {
				t.Errorf("the stopped lease: %+v", l)
			}
		case detached:
			if l.ExitCode == nil || *l.ExitCode != 3 || l.Result != "exited with 3" {
				t.Errorf("the detached lease: %+v", l)
			}
		}
	}
	if len(states) != 4 || len(list.Leases) != 4 || states[stopped] != api.LeaseEnded || states[detached] != api.LeaseEnded {
		t.Errorf("the leases are %s", fmt.Sprint(states))
	}
	for id, state := range states {
		if r := n.CLI(soon(t), "lease", "show", id); r.Code != 0 || !strings.Contains(r.Out, id) ||
			state == api.LeaseEnded && !strings.Contains(r.Out, "elapsed") {
			t.Errorf("lease show exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
	}
}
