package fairness

import (
	"testing"

	"github.com/gpushare/gpushare/test/enumeration"
)

// TestGating measures how soon a lease that rises above its share is frozen, with every sampler, and what it had above that.
func TestGating(t *testing.T) {
	const seeds = 8
	for _, r := range Rises() {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			kinds := map[samplers]Gatings{}
			for i, v := range Variants() {
				for seed := range uint64(seeds) {
					if (i+int(seed))%enumeration.Stride(2) == 0 {
						kinds[v.samplers()] = append(kinds[v.samplers()], MeasureRise(r, v, seed))
					}
				}
			}
			for kind, l := range kinds {
				want, median, nine, worst := measuredGating[kind], l.at(0.5, above), l.at(0.9, above), l.at(1, above)
				mean, most := l.most()
				t.Logf(
					"%s: frozen %.1f s after the rise at the median, %.1f s at 90 %%; above its share for %.1f, %.1f and %.1f s; most %.1f, %.1f points",
					kind,
					l.at(0.5, rose).Seconds(),
					l.at(0.9, rose).Seconds(),
					median.Seconds(),
					nine.Seconds(),
					worst.Seconds(),
					mean,
					most,
				)
				if median > want.Median || nine > want.Nine && len(l) > 20 || worst > want.Worst || mean > want.Mean {
					t.Errorf(
						"%s: above its share for %v, %v and %v, %.1f points more than its share; limits: %+v",
						kind,
						median,
						nine,
						worst,
						mean,
						want,
					)
				}
				if want.Reason == "" && want != gatingTarget {
					t.Errorf("%s: an exception without a reason", kind)
				}
			}
		})
	}
}
