package chart

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

var noon = time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)

// hours is usage in steps of one hour, each with its rows.
func hours(rows ...[]api.UsageStepRow) *api.Usage {
	u := &api.Usage{Since: noon, Until: noon.Add(time.Duration(len(rows)) * time.Hour), StepSeconds: 3600}
	for i, r := range rows {
		u.Steps = append(u.Steps, api.UsageStep{Since: noon.Add(time.Duration(i) * time.Hour), Rows: r})
	}
	return u
}

func row(tenant string, occupancy, busy, memory, waiting api.Thousandths) api.UsageStepRow {
	r := api.UsageStepRow{WaitingSeconds: waiting}
	r.Tenant, r.HeldSeconds = tenant, 3_600_000
	r.OccupancySeconds, r.OccupancyMeasuredSeconds = occupancy, 3_600_000
	r.BusySeconds, r.BusyMeasuredSeconds, r.GPUMemoryGiBSeconds, r.GPUMemoryMeasuredSeconds = busy, 3_600_000, memory, 3_600_000
	return r
}

func TestValuesAreMeansOfSteps(t *testing.T) {
	u := hours(
		[]api.UsageStepRow{row("speech", 1_800_000, 0, 36_000_000, 0), row("vision", 7_200_000, 3_600_000, 36_000_000, 900_000)}, nil,
		[]api.UsageStepRow{row("vision", 1_800_000, 900_000, 0, 0)},
	)
	u.Until = u.Until.Add(-30 * time.Minute) // The last step is half over.
	c := Of(u, time.UTC)
	got := map[string][]Series{}
	for _, p := range c.Panels {
		got[p.Title] = p.Series
	}
	want := map[string][]Series{
		"GPU time charged": {{"vision", []float64{2, 0, 1}}, {"speech", []float64{0.5, 0, 0}}},
		"GPU time busy":    {{"vision", []float64{1, 0, 0.5}}},
		"GPU memory":       {{"speech", []float64{10, 0, 0}}, {"vision", []float64{10, 0, 0}}},
		"waiting requests": {{"vision", []float64{0.25, 0, 0}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if c.Steps() != 3 || !c.At(2).Equal(noon.Add(2*time.Hour)) || c.Title != "GPU usage, 2025-03-01 12:00 to 2025-03-01 14:30 UTC" {
		t.Errorf("%d steps, the last at %s: %s", c.Steps(), c.At(2), c.Title)
	}
}

// What was not measured is said, and is not zero.
func TestNotMeasured(t *testing.T) {
	r := row("vision", 0, 0, 3_600_000, 0)
	r.OccupancyMeasuredSeconds, r.BusyMeasuredSeconds = 0, 0
	for _, p := range Of(hours([]api.UsageStepRow{r}), time.UTC).Panels {
		if (p.Absent == "") != (p.Title == "GPU memory") || (len(p.Series) == 0) != (p.Absent != "") {
			t.Errorf("%s: %q, %d series", p.Title, p.Absent, len(p.Series))
		}
	}
}

// Leases of which nothing was measured, or that used nothing, have a chart of the same length.
func TestNothingButHeld(t *testing.T) {
	unmeasured := api.UsageStepRow{}
	unmeasured.Tenant, unmeasured.HeldSeconds = "vision", 3_600_000
	for name, rows := range map[string][]api.UsageStepRow{"not measured": {unmeasured}, "zeros": {row("speech", 0, 0, 0, 0), row("vision", 0, 0, 0, 0)}} {
		u := hours(rows, nil)
		c := Of(u, time.UTC)
		if Empty(u) || c.Steps() != 2 {
			t.Errorf("%s: empty %v, %d steps", name, Empty(u), c.Steps())
		}
		for _, p := range c.Panels {
			if name == "zeros" && p.Title != "waiting requests" && (len(p.Series) != 1 || p.Series[0].Name != "speech") {
				t.Errorf("%s: %s has %+v", name, p.Title, p.Series)
			}
		}
	}
}

func TestManyTenantsShareASeries(t *testing.T) {
	var rows []api.UsageStepRow
	for i := range 20 {
		rows = append(rows, row(fmt.Sprintf("tenant-%02d", i), api.Thousandths(3_600_000*(20-i)), 0, 0, 0))
	}
	p := Of(hours(rows), time.UTC).Panels[0]
	sum := 0.0
	for _, s := range p.Series {
		sum += s.Mean()
	}
	if last := p.Series[len(p.Series)-1]; len(p.Series) != mostSeries || last.Name != Others || p.Series[0].Name != "tenant-00" ||
		math.Abs(sum-210) > 1e-9 {
		t.Errorf("%d series, the last %s, together %v", len(p.Series), last.Name, sum)
	}
}

func TestEmpty(t *testing.T) {
	held := api.UsageStepRow{}
	held.HeldSeconds = 1
	for name, c := range map[string]struct {
		usage *api.Usage
		want  bool
	}{
		"no steps": {&api.Usage{}, true}, "no rows": {hours(nil, nil), true}, "only zeros": {hours([]api.UsageStepRow{{}}), true},
		"held": {hours(nil, []api.UsageStepRow{held}), false}, "only waits": {hours([]api.UsageStepRow{{WaitingSeconds: 1}}), false},
	} {
		if got := Empty(c.usage); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	Of(&api.Usage{}, time.UTC) // It has no values, and does not panic.
}
