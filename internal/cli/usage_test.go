package cli_test

import (
	"encoding/csv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
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

// labMonth is a month of two tenants on two GPUs, with use outside of leases.
func labMonth() *api.Usage {
	row := func(tenant, user, gpu string, index *int, hours, idle api.Thousandths) api.UsageRow {
		const hour = 3_600_000
		return api.UsageRow{
			Tenant:                   tenant,
			User:                     user,
			GPU:                      gpu,
			GPUIndex:                 index,
			LeasesStarted:            3,
			LeasesEnded:              3,
			ExitCodes:                map[string]int64{"0": 3},
			HeldSeconds:              2 * hours * hour,
			GPUSeconds:               hours * hour,
			GPUMeasuredSeconds:       2 * hours * hour,
			HeldIdleSeconds:          idle * hour,
			HeldIdleMeasuredSeconds:  2 * hours * hour,
			BusySeconds:              hours * hour / 2,
			BusyStdErrorSeconds:      36_000,
			BusyMeasuredSeconds:      2 * hours * hour,
			GPUMemoryGiBSeconds:      20 * hours * hour,
			GPUMemoryMeasuredSeconds: 2 * hours * hour,
			GPUMemoryPeak:            30 << 30,
			OccupancySeconds:         hours * hour,
			OccupancyMeasuredSeconds: 2 * hours * hour,
			QueueWaitSeconds:         hour / 2,
		}
	}
	u := &api.Usage{
		SchemaVersion: 1,
		Host:          "lab1",
		Since:         time.Date(2025, 2, 1, 0, 0, 0, 0, time.UTC),
		Until:         time.Date(2025, 3, 1, 0, 0, 0, 0, time.UTC),
		By:            []string{"tenant", "user", "gpu"},
		Capacity:      &api.UsageCapacity{GPUs: 2, GPUSeconds: 2 * 672 * 3_600_000},
		Rows: []api.UsageRow{
			row("speech", "eve_*|<b>", gpu1, ptr(1), 100, 20),
			row("vision", "alice", gpu0, ptr(0), 300, 0),
			row("vision", "alice", gpu1, ptr(1), 50, 90),
			row("vision", "bob", gpu10, nil, 10, 10),
		},
		Outside: &api.UsageOutside{Rows: []api.UsageRow{
			{
				User:                     "carol",
				GPU:                      gpu0,
				GPUIndex:                 ptr(0),
				HeldSeconds:              36_000_000,
				HeldIdleSeconds:          27_000_000,
				HeldIdleMeasuredSeconds:  36_000_000,
				GPUMemoryGiBSeconds:      72_000_000,
				GPUMemoryMeasuredSeconds: 36_000_000,
				GPUMemoryPeak:            2 << 30,
			},
		}},
		LostRecords: 2,
	}
	u.Total = row("", "", "", nil, 460, 120)
	u.Total.BusyMeasuredSeconds -= 60 * 3_600_000
	u.Total.GPUMemoryMeasuredSeconds -= 40 * 3_600_000
	u.Outside.Total = u.Outside.Rows[0]
	return u
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

// Use outside of leases has columns of its own: the sums of the others are those of the leases. A key has one row.
func TestUsageOutsideOfLeasesIsInTheCSV(t *testing.T) {
	outside := func(user, gpu string, index *int, held api.Thousandths) api.UsageRow {
		return api.UsageRow{
			User:                     user,
			GPU:                      gpu,
			GPUIndex:                 index,
			HeldSeconds:              held,
			BusySeconds:              held / 4,
			BusyStdErrorSeconds:      7,
			BusyMeasuredSeconds:      held / 2,
			GPUMemoryGiBSeconds:      3 * held,
			GPUMemoryMeasuredSeconds: held,
			GPUMemoryPeak:            5 << 30,
			HeldIdleSeconds:          held / 8,
			HeldIdleMeasuredSeconds:  held / 2,
		}
	}
	for name, c := range map[string]struct {
		by      []string
		leases  []api.UsageRow
		outside []api.UsageRow
		keys    []string // of the rows that have use outside of leases
		rows    int
	}{
		"by tenant": {
			by:      []string{"tenant"},
			leases:  []api.UsageRow{{Tenant: "vision", HeldSeconds: 1000}},
			outside: []api.UsageRow{outside("", "", nil, 8000)},
			keys:    []string{""},
			rows:    2,
		},
		"by user, one of whom has both": {
			by:      []string{"user"},
			leases:  []api.UsageRow{{User: "alice", HeldSeconds: 1000}, {User: "bob", HeldSeconds: 2000}},
			outside: []api.UsageRow{outside("bob", "", nil, 8000), outside("carol", "", nil, 16000)},
			keys:    []string{"bob", "carol"},
			rows:    3,
		},
		"by user and GPU": {
			by:      []string{"user", "gpu"},
			leases:  []api.UsageRow{{User: "bob", GPU: gpu0, GPUIndex: ptr(0), HeldSeconds: 2000}},
			outside: []api.UsageRow{outside("bob", gpu1, ptr(1), 8000)},
			keys:    []string{"bob," + gpu1},
			rows:    2,
		},
		"by lease": {
			by:      []string{"lease"},
			leases:  []api.UsageRow{{Lease: "vision-dev-1", HeldSeconds: 2000}},
			outside: []api.UsageRow{outside("", "", nil, 8000)},
			keys:    []string{""},
			rows:    2,
		},
		"by user and account, of which leases outside have none": {
			by: []string{"user", "account"},
			leases: []api.UsageRow{
				{User: "alice", Account: "biology", HeldSeconds: 1000}, {User: "alice", Account: "physics", HeldSeconds: 2000},
			},
			outside: []api.UsageRow{outside("alice", "", nil, 8000)},
			keys:    []string{"alice,"},
			rows:    3,
		},
		"by job, next to leases without one": {
			by:      []string{"job"},
			leases:  []api.UsageRow{{HeldSeconds: 1000}, {Job: "slurm:1", HeldSeconds: 2000}},
			outside: []api.UsageRow{outside("", "", nil, 8000)},
			keys:    []string{""},
			rows:    2,
		},
		"of all": {leases: []api.UsageRow{{HeldSeconds: 2000}}, outside: []api.UsageRow{outside("", "", nil, 8000)}, keys: []string{""}, rows: 1},
		"none":   {by: []string{"user"}, leases: []api.UsageRow{{User: "alice", HeldSeconds: 1000}}, rows: 1},
	} {
		t.Run(name, func(t *testing.T) {
			u := &api.Usage{SchemaVersion: 1, By: c.by, Rows: c.leases}
			if c.outside != nil {
				u.Outside = &api.UsageOutside{Rows: c.outside}
			}
			r := run(t, routes{"GET /v1/usage": u}, "", "usage", "-o", "csv")
			lines, err := csv.NewReader(strings.NewReader(r.out)).ReadAll()
			if r.code != 0 || err != nil || len(lines) != c.rows+1 {
				t.Fatalf("exit code %d, %d lines, want %d rows: %v %s\n%s", r.code, len(lines), c.rows, err, r.err, r.out)
			}
			var keys []string
			var held, ofLeases, ofOthers float64
			for _, line := range lines[1:] {
				row := map[string]string{}
				for i, name := range lines[0] {
					row[name] = line[i]
				}
				held += number(t, row["held_seconds"])
				if o := number(t, row["outside_held_seconds"]); o != 0 {
					keys = append(keys, strings.Join(line[:len(c.by)], ","))
					ofOthers += o
					for name, want := range map[string]float64{
						"outside_busy_seconds": o / 4, "outside_busy_measured_seconds": o / 2, "outside_busy_std_error_seconds": 0.007,
						"outside_gpu_memory_gib_seconds": 3 * o, "outside_gpu_memory_measured_seconds": o,
						"outside_gpu_memory_peak_bytes": 5 << 30, "outside_held_idle_seconds": o / 8, "outside_held_idle_measured_seconds": o / 2,
					} {
						if got := number(t, row[name]); got != want {
							t.Errorf("%s is %v, want %v", name, got, want)
						}
					}
				}
			}
			for i := range c.leases {
				ofLeases += float64(c.leases[i].HeldSeconds) / 1000
			}
			var want float64
			for i := range c.outside {
				want += float64(c.outside[i].HeldSeconds) / 1000
			}
			if held != ofLeases || ofOthers != want || len(c.by) > 0 && !slices.Equal(keys, c.keys) {
				t.Errorf("leases %v, outside %v of %q; want %v, %v of %q\n%s", held, ofOthers, keys, ofLeases, want, c.keys, r.out)
			}
		})
	}
}

// number is a value of the CSV.
func number(t *testing.T, s string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Errorf("%q is no number", s)
	}
	return n
}

// What the user wrote reaches the daemon.
func TestUsageRequests(t *testing.T) {
	cli.SetNow(func() time.Time { return noon })
	for _, c := range []struct{ args, want string }{
		{"usage", "by=tenant&since=7d"},
		{"usage --since 36h --until 2h --by gpu,lease", "by=gpu%2Clease&since=36h&until=2h"},
		{"usage --month 2025-02", "by=tenant%2Cuser%2Cgpu&since=2025-02-01T00%3A00%3A00Z&until=2025-03-01T00%3A00%3A00Z"},
		{"usage --month 2025-03 --by user", "by=user&since=2025-03-01T00%3A00%3A00Z"}, // It is not over.
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
