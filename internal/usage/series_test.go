package usage

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

// The steps together are the sums of the same time, for any length of a step, and no wait is counted twice.
func TestSeriesAddsUpToSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := time.Duration(rapid.IntRange(1, 30).Draw(t, "hours")) * time.Hour
		since := noon.Truncate(step).Add(time.Duration(rapid.IntRange(0, int(step/time.Hour)-1).Draw(t, "begin")) * time.Hour)
		until := since.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "length")) * time.Hour)
		by := By{Tenant: true, GPU: rapid.Bool().Draw(t, "by GPU")}
		sums, series := NewSums(by, since, until), NewSeries(by, since, until, step)
		wants := map[Group]int64{}
		for range rapid.IntRange(0, 40).Draw(t, "records") {
			r := Record{
				Kind: rapid.SampledFrom([]Kind{KindUse, KindStart, KindEnd, KindRun, KindLost}).Draw(t, "kind"),
				At:   since.Add(time.Duration(rapid.Int64Range(int64(-2*step), int64(until.Sub(since)+2*step)).Draw(t, "at"))).UnixMilli(),
			}
			r.Tenant, r.GPU = rapid.SampledFrom([]string{"vision", "speech"}).Draw(
				t, "tenant",
			), gpu.UUID(rapid.SampledFrom([]string{"GPU-a", "GPU-b"}).Draw(t, "GPU"))
			r.Held, r.Memory = rapid.Int64Range(0, 3_600_000).Draw(t, "held"), rapid.Int64Range(0, 1000).Draw(t, "memory")
			if r.Kind == KindStart {
				r.Wait = rapid.Int64Range(0, 3*step.Milliseconds()).Draw(t, "wait")
				from, to := max(r.At-r.Wait, since.UnixMilli()), min(r.At, until.UnixMilli())
				if to > from {
					wants[by.group(&r)] += to - from
				}
			}
			sums.Add(&r)
			if err := series.Add(&r); err != nil {
				t.Fatal(err)
			}
		}
		together, waits, rows := map[Group]Amounts{}, map[Group]int64{}, 0
		for i, s := range series.Steps() {
			if want := since.Truncate(step).Add(time.Duration(i) * step); !s.Since.Equal(want) {
				t.Fatalf("step %d begins at %s, want %s", i, s.Since, want)
			}
			for _, r := range s.Rows {
				if r.Waiting < 0 || r.Waiting > step.Milliseconds()*40 {
					t.Fatalf("waits: %d", r.Waiting)
				}
				a := together[r.Group]
				a.Add(&r.Amounts)
				together[r.Group] = a
				if r.Waiting > 0 {
					waits[r.Group] += r.Waiting
				}
				rows++
			}
		}
		if rows != series.Len() {
			t.Fatalf("%d rows, Len says %d", rows, series.Len())
		}
		list, _ := sums.Rows()
		want := map[Group]Amounts{}
		for _, r := range list {
			want[r.Group] = r.Amounts
		}
		maps.DeleteFunc(together, func(_ Group, a Amounts) bool { return cmp.Equal(a, Amounts{}) }) // only a wait
		maps.DeleteFunc(want, func(_ Group, a Amounts) bool { return cmp.Equal(a, Amounts{}) })
		if diff := cmp.Diff(want, together); diff != "" {
			t.Fatalf("amounts (-sums +steps):\n%s", diff)
		}
		if diff := cmp.Diff(wants, waits); diff != "" {
			t.Fatalf("waits (-want +got):\n%s", diff)
		}
	})
}

// Of an old day there is only a sum: it is in a step of whole days, and in no shorter one.
func TestSeriesOfOldDays(t *testing.T) {
	day := noon.Truncate(24 * time.Hour)
	sum := Record{Kind: KindSum, At: day.UnixMilli(), Tenant: "vision"}
	sum.Held, sum.Wait = 1000, 500
	for step, ok := range map[time.Duration]bool{time.Hour: false, 12 * time.Hour: false, 36 * time.Hour: false, 24 * time.Hour: true, 72 * time.Hour: true} {
		s := NewSeries(By{Tenant: true}, day.Add(-24*time.Hour), day.Add(48*time.Hour), step)
		err := s.Add(&sum)
		if !ok {
			if !errors.Is(err, ErrOnlyDays) {
				t.Errorf("steps of %s: %v", step, err)
			}
			continue
		}
		held, waits := int64(0), int64(0)
		for _, x := range s.Steps() {
			for _, r := range x.Rows {
				held, waits = held+r.Held, waits+r.Waiting
			}
		}
		if err != nil || held != 1000 || waits != 500 {
			t.Errorf("steps of %s: held %d, waits %d, %v", step, held, waits, err)
		}
	}
}
