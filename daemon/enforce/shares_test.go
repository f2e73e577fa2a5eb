package enforce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// sliced is a time-sliced GPU with two leases that hold it, running for a while.
func sliced(t *testing.T, enforce api.Switch, change func(*world)) (w *world, blue string) {
	t.Helper()
	w = newWorld(t, "notify")
	w.enforce(enforce, api.ModeTimeslice)
	blue = w.another(t, "blue")
	w.port.own(nobody, w.lease)
	w.port.own(nobody+1, blue)
	w.driver.sample = func() ([]gpu.Process, error) {
		return []gpu.Process{on(nobody, limit/2), on(nobody+1, limit/2)}, nil
	}
	if change != nil {
		change(w)
	}
	w.begin(t)
	w.until(10 * time.Second)
	return w, blue
}

// frozenAtATime is who was frozen over two rounds, looked at often.
func frozenAtATime(w *world) (most int, who map[string]bool) {
	who = map[string]bool{}
	for range 250 {
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		frozen := w.port.whoIsFrozen()
		most = max(most, len(frozen))
		for _, id := range frozen {
			who[id] = true
		}
	}
	return most, who
}

func TestTimeIsShared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		enforce api.Switch
		change  func(*world)
		freezes bool // somebody is asked to freeze
		frozen  int  // how many take turns
	}{
		{name: "both take turns", enforce: "on", freezes: true, frozen: 2},
		{name: "a node that only observes", enforce: "observe"},
		{name: "nothing freezes on this host", enforce: "on", change: func(w *world) { w.Gate = nil }},
		{name: "nobody can be frozen: all run on", enforce: "on", change: func(w *world) { w.port.breaks = errNoAnswer }, freezes: true},
		{
			name: "the driver does not answer: all run", enforce: "on",
			change: func(w *world) { w.driver.sample = func() ([]gpu.Process, error) { return nil, errNoAnswer } },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, _ := sliced(t, c.enforce, c.change)
				if w.Shares.get(one) == nil {
					t.Error("nobody shares out the GPU")
				}
				_, who := frozenAtATime(w)
				if len(who) != c.frozen {
					t.Errorf("%d leases take turns, want %d", len(who), c.frozen)
				}
				w.end()
				if got := w.port.howOften(); (len(got) > 0) != c.freezes {
					t.Errorf("freezes: %v, want some: %v", got, c.freezes)
				}
				if len(w.left) > 0 {
					t.Errorf("it has ended, and %v are frozen", w.left)
				}
			})
		})
	}
}

// The loop of a GPU ends with its last lease, and lets everybody run.
func TestTheLoopEndsWithTheLastLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, blue := sliced(t, "on", nil)
		sl := w.Shares.get(one)
		for len(w.port.whoIsFrozen()) == 0 { // Whoever goes now leaves while somebody is frozen.
			time.Sleep(time.Millisecond)
		}
		for _, id := range []string{w.lease, blue} {
			if err := w.Table.Ended(t.Context(), id, "its last process ended"); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if left := w.port.whoIsFrozen(); len(left) > 0 {
			t.Errorf("no lease is left, and %v are frozen", left)
		}
		if sl == nil || w.Shares.get(one) != nil {
			t.Error("the loop did not end")
		}
		was := w.port.howOften()
		w.until(time.Minute)
		for id, n := range w.port.howOften() {
			if n != was[id] {
				t.Errorf("%s was frozen after its end", id)
			}
		}
		w.end()
	})
}

// Whoever is alone is never frozen, whoever was there before.
func TestAloneNobodyIsFrozen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, blue := sliced(t, "on", nil)
		if err := w.Table.Ended(t.Context(), blue, "its last process ended"); err != nil {
			t.Fatal(err)
		}
		w.until(12 * time.Second)
		if most, who := frozenAtATime(w); most > 0 {
			t.Errorf("%v are frozen", who)
		}
		if w.Shares.get(one) == nil {
			t.Error("the loop ended with the first lease")
		}
		w.end()
	})
}

// Run returns when ctx ends, after whom it froze was thawed, at whatever moment that is.
func TestRunReturns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		run  func(t *testing.T) *world
	}{
		{"without a lease", func(t *testing.T) *world {
			w := newWorld(t, "kill")
			if err := w.Table.Ended(t.Context(), w.lease, "its last process ended"); err != nil {
				t.Fatal(err)
			}
			w.begin(t)
			return w
		}},
		{"at once", func(t *testing.T) *world { w := newWorld(t, "kill"); w.begin(t); return w }},
		{"while somebody is frozen for another", func(t *testing.T) *world {
			w, _ := sliced(t, "on", func(w *world) { w.port.slow = time.Millisecond })
			for len(w.port.whoIsFrozen()) == 0 {
				time.Sleep(time.Millisecond)
			}
			return w
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := c.run(t)
				w.end() // A Run that does not return is a deadlock of the bubble.
				if len(w.left) > 0 {
					t.Errorf("it has ended, and %v are frozen", w.left)
				}
			})
		})
	}
}
