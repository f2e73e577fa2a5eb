package chart

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// A request that waited for two seconds of an hour is no queue: it has no panel with an axis of thousandths. Every axis reaches at least
// one GPU, GiB or request.
func TestNoAxisOfThousandths(t *testing.T) {
	for name, c := range map[string]struct {
		waiting api.Thousandths
		shown   bool
	}{"two seconds": {2_000, false}, "a minute": {60_000, true}, "an hour": {3_600_000, true}} {
		chart := Of(hours([]api.UsageStepRow{row("vision", 36_000, 0, 1_000, c.waiting)}), time.UTC)
		for i := range chart.Panels {
			p := &chart.Panels[i]
			if p.Least < 1 {
				t.Errorf("%s: the axis of %s may end below 1", name, p.Title)
			}
			if p.Unit == requests && (p.Absent == "") != c.shown {
				t.Errorf("%s: the waiting requests are %+v", name, p)
			}
		}
	}
}
