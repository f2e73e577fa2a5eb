package enforce

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// twoTimeSlicedLeases returns a time-sliced GPU with two busy leases that have run for 10 s.
func twoTimeSlicedLeases(t *testing.T, enforce api.OnOff, change func(*fixture)) (w *fixture, blue string) {
	t.Helper()
	w = newFixture(t, "notify")
	w.enforce(enforce, api.ModeTimeslice)
	blue = w.startLease(t, "blue")
	w.port.assign(unusedPID, w.lease)
	w.port.assign(unusedPID+1, blue)
	w.driver.sample = func() ([]gpu.Process, error) {
		return []gpu.Process{on(unusedPID, limit/2), on(unusedPID+1, limit/2)}, nil
	}
	if change != nil {
		change(w)
	}
	w.begin(t)
	w.runUntil(10 * time.Second)
	return w, blue
}

// frozenOverTwoRounds returns how many leases were frozen at a time, and which, read often over two rounds.
func frozenOverTwoRounds(w *fixture) (most int, leases map[string]bool) {
	leases = map[string]bool{}
	for range 250 {
		elapse(10 * time.Millisecond)
		synctest.Wait()
		frozen := w.port.frozenLeases()
		most = max(most, len(frozen))
		for _, id := range frozen {
			leases[id] = true
		}
	}
	return most, leases
}

func TestTimeIsShared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		enforce api.OnOff
		change  func(*fixture)
		freezes bool // the freezer is called
		frozen  int  // how many leases take turns
	}{
		{name: "both take turns", enforce: "on", freezes: true, frozen: 2},
		{name: "a node that only observes", enforce: "observe"},
		{name: "nothing freezes on this host", enforce: "on", change: func(w *fixture) { w.Freezer = nil }},
		{name: "freezes fail: all continue to run", enforce: "on", change: func(w *fixture) { w.port.freezeErr = errNoAnswer }, freezes: true},
		{
			name: "the driver does not answer: all run", enforce: "on",
			change: func(w *fixture) { w.driver.sample = func() ([]gpu.Process, error) { return nil, errNoAnswer } },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, _ := twoTimeSlicedLeases(t, c.enforce, c.change)
				if w.Shares.get(testGPU) == nil {
					t.Error("the GPU has no loop")
				}
				_, leases := frozenOverTwoRounds(w)
				if len(leases) != c.frozen {
					t.Errorf("%d leases take turns, want %d", len(leases), c.frozen)
				}
				w.end()
				if got := w.port.freezeCounts(); (len(got) > 0) != c.freezes {
					t.Errorf("freezes: %v, want some: %v", got, c.freezes)
				}
				if len(w.frozenAtEnd) > 0 {
					t.Errorf("Run has returned, and %v are frozen", w.frozenAtEnd)
				}
			})
		})
	}
}

// The loop of a GPU ends with its last lease, and thaws all leases.
func TestTheLoopEndsWithTheLastLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, blue := twoTimeSlicedLeases(t, "on", nil)
		sl := w.Shares.get(testGPU)
		for len(w.port.frozenLeases()) == 0 { // The leases end while one is frozen.
			elapse(time.Millisecond)
		}
		for _, id := range []string{w.lease, blue} {
			if err := w.Table.Ended(t.Context(), id, "its last process ended"); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if left := w.port.frozenLeases(); len(left) > 0 {
			t.Errorf("no lease is left, and %v are frozen", left)
		}
		if sl == nil || w.Shares.get(testGPU) != nil {
			t.Error("the loop did not end")
		}
		was := w.port.freezeCounts()
		w.runUntil(time.Minute)
		for id, n := range w.port.freezeCounts() {
			if n != was[id] {
				t.Errorf("%s was frozen after its end", id)
			}
		}
		w.end()
	})
}

// The only lease of a GPU is never frozen, also after another one has ended.
func TestTheOnlyLeaseIsNeverFrozen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, blue := twoTimeSlicedLeases(t, "on", nil)
		if err := w.Table.Ended(t.Context(), blue, "its last process ended"); err != nil {
			t.Fatal(err)
		}
		w.runUntil(12 * time.Second)
		if most, leases := frozenOverTwoRounds(w); most > 0 {
			t.Errorf("%v are frozen", leases)
		}
		if w.Shares.get(testGPU) == nil {
			t.Error("the loop ended with the first lease")
		}
		w.end()
	})
}

// Run returns when ctx ends, after it has thawed the leases, at every moment.
func TestRunReturns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		run  func(t *testing.T) *fixture
	}{
		{"without a lease", func(t *testing.T) *fixture {
			w := newFixture(t, "kill")
			if err := w.Table.Ended(t.Context(), w.lease, "its last process ended"); err != nil {
				t.Fatal(err)
			}
			w.begin(t)
			return w
		}},
		{"at once", func(t *testing.T) *fixture { w := newFixture(t, "kill"); w.begin(t); return w }},
		{"while a lease is frozen", func(t *testing.T) *fixture {
			w, _ := twoTimeSlicedLeases(t, "on", func(w *fixture) { w.port.slow = time.Millisecond })
			for len(w.port.frozenLeases()) == 0 {
				elapse(time.Millisecond)
			}
			return w
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := c.run(t)
				w.end() // A Run that does not return is a deadlock of the bubble.
				if len(w.frozenAtEnd) > 0 {
					t.Errorf("Run has returned, and %v are frozen", w.frozenAtEnd)
				}
			})
		})
	}
}

// A lease that cannot be frozen is shown without an enforced share, with the reason, and a condition names it until it can be. Next to
// it the other one is alone, so it is not frozen.
func TestALeaseThatCannotBeFrozenIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, blue := twoTimeSlicedLeases(t, "on", func(w *fixture) { w.port.setFreezeError(errNoAnswer) })
		shown := func() (notEnforced []string, conditions string) {
			for _, id := range []string{w.lease, blue} {
				l := api.Lease{ID: id, Kind: api.ModeTimeslice, GPUs: []string{string(testGPU)}, Share: &api.LeaseShare{}}
				l.Isolation.Freeze = true
				w.Fill(&l, true)
				if !l.Share.Enforced {
					notEnforced = append(notEnforced, id+" "+l.Share.Reason)
				}
			}
			for _, c := range w.Conditions.List() {
				if c.Kind == conditionUngated {
					conditions += c.Message
				}
			}
			return notEnforced, conditions
		}
		expect := func(when string, reported bool) {
			t.Helper()
			leases, conditions := shown()
			want := 0
			if reported {
				want = 1
			}
			if len(leases) != want || len(leases) == 1 && (!strings.HasSuffix(leases[0], "it cannot be frozen: "+errNoAnswer.Error()) ||
				!strings.Contains(conditions, strings.Fields(leases[0])[0]+" runs in the slices of others")) || (conditions != "") != reported {
				t.Errorf("%s: not enforced %q, conditions %q", when, leases, conditions)
			}
		}
		expect("when no freeze succeeds", true)
		w.port.setFreezeError(nil)
		elapse(70 * time.Second)
		expect("when it can be frozen again", false)
		w.port.setFreezeError(errNoAnswer)
		elapse(30 * time.Second)
		expect("when it cannot any more", true)
		w.end()
		expect("at the end", false)
	})
}
