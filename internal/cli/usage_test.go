package cli_test

import (
	"encoding/csv"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// labUsage is a week of two tenants.
func labUsage() *api.Usage {
	vision := api.UsageRow{
		Tenant:                   "vision",
		User:                     "alice",
		LeasesStarted:            12,
		LeasesEnded:              11,
		HeldSeconds:              86_400_000,
		OccupancySeconds:         25_920_500,
		OccupancyMeasuredSeconds: 86_000_000,
		BusySeconds:              24_000_001,
		BusyStdErrorSeconds:      312_250,
		BusyMeasuredSeconds:      85_000_000,
		GPUMemoryGiBSeconds:      518_400_000,
		GPUMemoryMeasuredSeconds: 86_000_000,
		GPUMemoryPeak:            12 << 30,
		QueueWaitSeconds:         90_250,
		QueueWaitLongestSeconds:  60_000,
		ExitCodes:                map[string]int64{"0": 7, "137": 1, "2": 1, "unknown": 2},
	}
	green := api.UsageRow{
		Tenant:                  "green",
		User:                    "bob",
		LeasesStarted:           1,
		HeldSeconds:             3_600_000,
		QueueWaitSeconds:        5,
		QueueWaitLongestSeconds: 5,
		ExitCodes:               map[string]int64{},
	}
	total := vision
	total.Tenant, total.User = "", ""
	total.LeasesStarted, total.HeldSeconds, total.QueueWaitSeconds = 13, 90_000_000, 90_255
	return &api.Usage{
		SchemaVersion: 1,
		Since:         noon.Add(-7 * 24 * time.Hour),
		Until:         noon,
		By:            []string{"tenant", "user"},
		Rows:          []api.UsageRow{green, vision},
		Total:         total,
		LostRecords:   3,
	}
}

// accountedLeases are a lease that runs and two that ended, one of them before the last boot.
func accountedLeases() api.LeaseList {
	started, ended, elapsed, peak, code := noon.Add(-2*time.Hour), noon.Add(-time.Hour), api.Thousandths(3_600_250), uint64(3<<30), 3
	return api.LeaseList{SchemaVersion: 1, Leases: []api.Lease{
		labNode().Leases[0],
		{
			ID:             "vision-train-m2n4",
			Tenant:         "vision",
			Grant:          "train",
			Kind:           "timeslice",
			State:          api.LeaseEnded,
			User:           "alice",
			Command:        []string{"python", "train.py"},
			Created:        started,
			Started:        &started,
			Ended:          &ended,
			ElapsedSeconds: &elapsed,
			GPUMemory:      &api.LeaseMemory{Peak: &peak},
			Reason:         "the last process ended",
			Result:         "exited with 3",
			ExitCode:       &code,
		},
		{
			ID:             "vision-train-b5c6",
			Tenant:         "vision",
			Grant:          "train",
			State:          api.LeaseEnded,
			User:           "bob",
			Command:        []string{"./bench"},
			Created:        started,
			Started:        &started,
			Ended:          &ended,
			ElapsedSeconds: new(api.Thousandths),
			Reason:         "the node was started again",
		},
	}}
}

// The CSV is read back by the parser of the standard library, with the numbers that the API gave.
func TestUsageIsCSV(t *testing.T) {
	u := labUsage()
	u.Rows[0].User = "a \"b\",\r\nc"
	r := run(t, routes{"GET /v1/usage": u}, "", "usage", "--csv")
	if r.code != 0 || !strings.Contains(r.err, "3 records of this time were lost") {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	if strings.Count(r.out, "\n") != strings.Count(r.out, "\r\n") {
		t.Error("a line does not end with CRLF")
	}
	rows, err := csv.NewReader(strings.NewReader(r.out)).ReadAll()
	if err != nil || len(rows) != 3 {
		t.Fatalf("%d rows: %v", len(rows), err)
	}
	if rows[0][0] != "tenant" || rows[0][1] != "user" || rows[2][0] != "vision" || rows[1][1] != "a \"b\",\nc" {
		t.Errorf("read %q", rows)
	}
	for i, name := range rows[0] {
		if name == "busy_seconds" && rows[2][i] != "24000.001" {
			t.Errorf("busy_seconds are %s", rows[2][i])
		}
	}
}

// What the user wrote reaches the daemon.
func TestUsageRequests(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"usage", "by=tenant&since=7d"},
		{"usage --since 36h --until 2h --by gpu,lease", "by=gpu%2Clease&since=36h&until=2h"},
		{"lease list --since 2026-02-01", "since=2026-02-01"},
	} {
		t.Run(c.args, func(t *testing.T) {
			var got string
			answer := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				got = q.URL.RawQuery
				_, _ = w.Write([]byte("{}"))
			})
			if r := run(
				t,
				routes{"GET /v1/usage": answer, "GET /v1/leases": answer},
				"",
				strings.Fields(c.args)...); r.code != 0 ||
				got != c.want {
				t.Errorf("exit code %d, asked %q, want %q: %s", r.code, got, c.want, r.err)
			}
		})
	}
}
