package enforce

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/stop"
)

// A lease whose programs run in the slices of others is stopped, once and by the one escalation, if the spec says so and it was
// measured: a freeze that fails for another reason is no offence.
func TestALeaseThatCannotBeFrozenIsStopped(t *testing.T) {
	t.Parallel()
	runs := fmt.Errorf("%w: thread 7 (loop) runs", cgroup.ErrRuns)
	for _, c := range []struct {
		name    string
		policy  string
		err     error
		stopped bool
	}{
		{"the spec says so", api.UnfrozenStop, runs, true},
		{"it has too many parts", api.UnfrozenStop, fmt.Errorf("cannot freeze it: %w", cgroup.ErrManyParts), true},
		{"the spec says report", api.UnfrozenReport, runs, false},
		{"the spec says nothing", "", runs, false},
		{"its freeze only takes too long", api.UnfrozenStop, errNoAnswer, false},
		{"it is being stopped already", api.UnfrozenStop, cgroup.ErrStopping, false},
		{"all leases are frozen in time", api.UnfrozenStop, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, _ := twoTimeSlicedLeases(t, "on", func(w *fixture) {
					w.State.Desired().Spec.Node.Isolation = &api.IsolationSpec{Unfrozen: c.policy}
					w.port.setFreezeError(c.err)
				})
				w.runUntil(5 * time.Minute)
				var stops []string
				at := map[string]time.Duration{} // of each stage
				for _, line := range w.journal.read() {
					when, what, _ := strings.Cut(line, " ")
					if strings.HasPrefix(what, "stop ") {
						stops = append(stops, what)
					}
					at[what], _ = time.ParseDuration(when)
				}
				left := len(w.Table.Live())
				if !c.stopped {
					if len(stops) != 0 || left != 2 {
						t.Errorf("%d leases are left, %q", left, stops)
					}
					w.end()
					return
				}
				// The first one is stopped; the other then has no competitor, so that nothing freezes it.
				if len(stops) != 1 || left != 1 ||
					!strings.HasSuffix(
						stops[0], "it ran in 3 slices of others within 3m: it could not be frozen (isolation.unfrozen: stop)",
					) {
					t.Errorf("%d leases are left, %q", left, stops)
				}
				if at["notice"] == 0 || at["SIGTERM"] < at["notice"] || at["SIGKILL"] < at["SIGTERM"]+stop.StopGrace {
					t.Errorf("the escalation: notice at %v, SIGTERM at %v, SIGKILL at %v", at["notice"], at["SIGTERM"], at["SIGKILL"])
				}
				w.end()
			})
		})
	}
}
