package plotimage

import (
	"time"

	"gonum.org/v1/plot"
)

// times puts ticks on an axis of times at whole hours or days of a zone.
type times struct {
	begin, end time.Time
	zone       *time.Location
}

// mostTicks is how many labels fit next to each other.
const mostTicks = 9

// Ticks returns them.
func (t times) Ticks(_, _ float64) []plot.Tick {
	hours := 24 * 365
	for _, h := range []int{1, 2, 3, 6, 12, 24, 48, 7 * 24, 14 * 24, 28 * 24, 91 * 24} {
		if t.end.Sub(t.begin) <= mostTicks*time.Duration(h)*time.Hour {
			hours = h
			break
		}
	}
	format := "Jan 2"
	if hours < 24 {
		format = "Jan 2 15:04"
	}
	var out []plot.Tick
	y, m, d := t.begin.In(t.zone).Date()
	// Hours and days are counted in the calendar: a day in which the clocks change has another length.
	for i := 0; ; i++ {
		at := time.Date(y, m, d, i*hours, 0, 0, 0, t.zone)
		if at.After(t.end) {
			return out
		}
		if !at.Before(t.begin) {
			out = append(out, plot.Tick{Value: float64(at.Unix()), Label: at.Format(format)})
		}
	}
}
