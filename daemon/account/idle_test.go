package account

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/enumeration"
)

// notices returns the notices that the user of the lease got.
func (w *fixture) notices() []string {
	var out []string
	for _, l := range w.table.Live() {
		out = append(out, l.Notices...)
	}
	return out
}

func TestIdleLeases(t *testing.T) {
	enumeration.Long(t)
	const hour = time.Hour
	stop := func(after time.Duration) *api.IdleSpec {
		return &api.IdleSpec{After: api.Duration(after), Do: api.IdleStop}
	}
	for _, c := range []struct {
		name    string
		idle    *api.IdleSpec
		do      func(w *fixture)
		notices int
		stopped string // the reason; empty: it is not stopped
	}{
		{"not yet", stop(hour), func(w *fixture) { w.busy = part(0); w.pass(hour - 20*time.Second) }, 0, ""},
		{"warned", stop(hour), func(w *fixture) { w.busy = part(0); w.pass(hour + 20*time.Second) }, 1, ""},
		{"stopped after the grace", stop(hour), func(w *fixture) { w.busy = part(0); w.pass(hour + 5*time.Minute + 20*time.Second) }, 0, "for 1h5m (idle.do: stop"},
		{"a short after has a short grace", stop(10 * time.Second), func(w *fixture) { w.busy = part(0); w.pass(41 * time.Second) }, 0, "for 20s"},
		{"only warned, once", &api.IdleSpec{After: api.Duration(hour)}, func(w *fixture) { w.busy = part(0); w.pass(5 * hour) }, 1, ""},
		{"busy", stop(hour), func(w *fixture) { w.busy = part(0.5); w.pass(5 * hour) }, 0, ""},
		{"busy in the grace, then idle again", stop(hour), func(w *fixture) {
			w.busy = part(0)
			w.pass(hour + 2*time.Minute)
			w.busy = part(0.5)
			w.pass(10 * time.Second)
			w.busy = part(0)
			w.pass(hour + 30*time.Second)
		}, 2, ""},
		{"never measured", stop(hour), func(w *fixture) { w.pass(5 * hour) }, 0, ""},
		{"no longer measured in the grace", stop(hour), func(w *fixture) {
			w.busy = part(0)
			w.pass(hour + time.Minute)
			w.busy = nil
			w.pass(5 * hour)
		}, 1, ""},
		{"frozen by an administrator", stop(hour), func(w *fixture) {
			w.busy, w.held = part(0), true
			w.pass(5 * hour)
		}, 0, ""},
		{"idle was removed from the grant", stop(hour), func(w *fixture) {
			w.busy = part(0)
			w.pass(hour + time.Minute)
			w.revise(nil)
			w.pass(hour)
		}, 1, ""},
		{"the node only observes", stop(hour), func(w *fixture) {
			w.State.SetDesired(&state.Desired{Generation: 2, Spec: &api.Spec{Node: api.NodeSpec{Enforce: "observe"}}})
			w.busy = part(0)
			w.pass(5 * hour)
		}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				w.revise(c.idle)
				c.do(w)
				if n := w.notices(); len(n) != c.notices {
					t.Errorf("%d notices, want %d: %q", len(n), c.notices, n)
				}
				switch {
				case c.stopped == "" && len(w.stopped) > 0:
					t.Errorf("the lease was stopped: %q", w.stopped)
				case c.stopped != "" && (len(w.stopped) != 1 || !strings.Contains(w.stopped[0], c.stopped)):
					t.Errorf("stopped: %q, want one with %q", w.stopped, c.stopped)
				}
			})
		})
	}
}

// A restart neither forgets idle time nor invents it, and the user is warned again.
func TestIdleOverARestart(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.revise(&api.IdleSpec{After: api.Duration(time.Hour), Do: api.IdleStop})
		w.busy = part(0)
		w.pass(50 * time.Minute)
		saved := w.kill()
		elapse(3 * time.Hour) // It may have been busy then.
		w.start(saved)
		w.pass(9 * time.Minute)
		if n := w.notices(); len(n) != 0 {
			t.Errorf("warned too early: %q", n)
		}
		w.pass(2*time.Minute + 20*time.Second) // At most a minute was not written.
		if n := w.notices(); len(n) != 1 || !strings.Contains(n[0], "it is stopped in 5m unless it does") {
			t.Errorf("notices %q", n)
		}
		w.pass(3 * time.Minute)
		w.stop()
		saved, err := w.table.State()
		if err != nil {
			t.Fatal(err)
		}
		w.start(saved)
		w.pass(4*time.Minute + 30*time.Second)
		if n := w.notices(); len(n) != 2 || len(w.stopped) != 0 {
			t.Errorf("notices %q, stopped %q", n, w.stopped)
		}
		w.pass(time.Minute)
		if len(w.stopped) != 1 {
			t.Errorf("stopped %q", w.stopped)
		}
	})
}

// The status says for how long a lease was seen idle, and that it cannot be seen without a measurement.
func TestWhatIdleShows(t *testing.T) {
	inBubble(t, func(w *fixture) {
		live := func() *api.Lease {
			l := w.table.Live()[0].Wire()
			l.Isolation.NotEnforced = append(make([]string, 0, 10), "another")
			w.Fill(&l)
			return &l
		}
		w.pass(30 * time.Second)
		if l := live(); l.IdleSeconds != nil {
			t.Errorf("idle for %v without a measurement", *l.IdleSeconds)
		}
		w.busy = part(0)
		w.pass(30 * time.Second)
		if l := live(); l.IdleSeconds == nil || *l.IdleSeconds < 19 || len(l.Isolation.NotEnforced) != 1 {
			t.Errorf("without idle in the grant: %+v", l)
		}
		w.busy = part(1)
		w.pass(20 * time.Second)
		w.revise(&api.IdleSpec{After: api.Duration(time.Hour), Do: api.IdleStop})
		w.busy = part(0)
		w.pass(30 * time.Second)
		if l := live(); l.IdleSeconds == nil || *l.IdleSeconds < 19 || *l.IdleSeconds > 30 ||
			!slices.Equal(l.Isolation.NotEnforced, []string{"another"}) {
			t.Errorf("%+v", l)
		}
		w.busy = nil
		w.pass(90 * time.Second)
		if l := live(); l.IdleSeconds != nil || len(l.Isolation.NotEnforced) != 2 ||
			!strings.Contains(l.Isolation.NotEnforced[1], "is not measured, so it cannot be seen to be idle") {
			t.Errorf("%q", l.Isolation.NotEnforced)
		}
	})
}

// A lease on several GPUs is idle on those that it does not use, and unknown where nothing is measured.
func TestIdleOnEachGPU(t *testing.T) {
	inBubble(t, func(w *fixture) {
		l := w.table.Live()[0]
		if idle, known := w.IdleOn(l.ID, l.Generation, l.Place.GPUs[0]); known {
			t.Errorf("idle for %v without a measurement", idle)
		}
		w.busy = part(0)
		w.pass(45 * time.Second)
		if idle, known := w.IdleOn(l.ID, l.Generation, l.Place.GPUs[0]); !known || idle < 30*time.Second || idle > 45*time.Second {
			t.Errorf("idle for %v, known: %v", idle, known)
		}
		if _, known := w.IdleOn(l.ID, l.Generation, "GPU-of-others"); known {
			t.Error("the lease has an idle time on a GPU that it does not have")
		}
		w.busy = nil
		w.pass(90 * time.Second)
		if idle, known := w.IdleOn(l.ID, l.Generation, l.Place.GPUs[0]); known {
			t.Errorf("idle for %v, although that was not measured for 90 s", idle)
		}
	})
}

func TestStoppable(t *testing.T) {
	for origin, want := range map[string]bool{
		"": true, lease.OriginRun: true, lease.OriginDetached: true, lease.OriginAttached: true, lease.OriginLogin: false, lease.OriginUnit: false, lease.OriginContainer: false,
	} {
		if Stoppable(origin) != want {
			t.Errorf("%q: %v", origin, !want)
		}
	}
}
