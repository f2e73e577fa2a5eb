package converge

import (
	"log/slog"
	"testing"
	"time"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

// While a change is under way nothing is mended: it would give access before the hardware is what it is given for.
func TestNothingIsMendedInAChange(t *testing.T) {
	cv := &Converger{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), State: state.NewState(nil, false), Observer: &observe.Observer{}}
	ch := &state.OpenChange{Operation: "apply-1", GPUs: map[gpu.UUID]bool{"GPU-1": true}}
	for i, c := range []struct {
		in   *state.OpenChange
		runs uint64
	}{{ch, 0}, {nil, 1}} {
		cv.State.SetChanging(c.in)
		if err := cv.Mend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := cv.Counters.Converges.Load(); n != c.runs {
			t.Errorf("%d: %d times something was mended, want %d", i, n, c.runs)
		}
	}
}
