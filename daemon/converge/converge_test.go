package converge

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/isolation"
)

const sharedSpec = `version: v1
node: {enforce: on, isolation: {migration: deny}}
tenants:
  - {name: red, memory: {max: 1GiB}, tasks: 100}
  - {name: blue, memory: {max: 2GiB}}
`

var red = cgroup.SliceName{Tenant: "red"}

func (w *fixture) slice(t *testing.T, name cgroup.SliceName) cgroup.Slice {
	t.Helper()
	s, err := w.port.Slice(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return cgroup.Slice{Name: s.Name, Limits: s.Limits, Closed: s.Closed, Devices: s.Devices}
}

// messages returns the messages of the conditions of a kind.
func (w *fixture) messages(kind string) []string {
	var out []string
	for _, c := range w.Conditions.List() {
		if c.Kind == kind {
			out = append(out, c.Message)
		}
	}
	return out
}

// While a change is open nothing is corrected: a correction would grant access before the GPUs are changed.
func TestNothingIsCorrectedDuringAChange(t *testing.T) {
	w := newFixture(t, sharedSpec)
	w.Observer.Observe(t.Context())
	change := &state.OpenChange{Operation: "apply-1"}
	w.State.SetChanging(change)
	w.Pass(t.Context())
	if n := w.Counters.Converges.Load(); n != 0 || w.port.Writes() != 0 {
		t.Errorf("%d corrections, with %d writes", n, w.port.Writes())
	}
	if w.State.Changing() != change {
		t.Errorf("the open change is %+v", w.State.Changing())
	}
	w.State.EndChange()
	w.Pass(t.Context())
	if got := strings.Join(w.port.Names(), " "); w.Counters.Converges.Load() != 1 || !strings.Contains(got, "red") ||
		!strings.Contains(got, "blue") {
		t.Errorf("after it the slices are %s", got)
	}
	if denied, err := w.port.Policy.MigrationDenied(); !denied || err != nil {
		t.Errorf("after it moving is denied: %v, %v", denied, err)
	}
}

// The daemon starts until the node was compared with the spec: a change that is resumed, or that is planned, is in the way of that.
func TestTheDaemonStartsUntilTheNodeWasCompared(t *testing.T) {
	w := newFixture(t, sharedSpec)
	w.changes.busy = true
	for _, starting := range []bool{true, false} {
		w.changes.busy = starting
		if w.Pass(t.Context()); w.State.Starting() != starting {
			t.Errorf("after a pass that compared %v it starts: %v", !starting, w.State.Starting())
		}
	}
}

// Converging again changes nothing.
func TestConvergingTwiceWritesOnce(t *testing.T) {
	w := newFixture(t, sharedSpec)
	w.Pass(t.Context())
	writes, steps := w.port.Writes(), w.Counters.Steps.Load()
	if writes == 0 || steps == 0 {
		t.Fatalf("the first pass made %d writes in %d steps", writes, steps)
	}
	for range 3 {
		w.Pass(t.Context())
	}
	if w.port.Writes() != writes || w.Counters.Steps.Load() != steps || w.Counters.Drifts.Load() != 0 {
		t.Errorf(
			"more passes made %d more writes in %d steps, and %d drifts", w.port.Writes()-writes, w.Counters.Steps.Load()-steps,
			w.Counters.Drifts.Load(),
		)
	}
}

// A change of a slice from outside is corrected and reported once.
func TestDriftIsCorrectedAndReportedOnce(t *testing.T) {
	gibibyte := uint64(1 << 30)
	for _, c := range []struct {
		name   string
		tamper func(w *fixture, s cgroup.Slice)
		says   string
	}{
		{"a limit is raised", func(w *fixture, s cgroup.Slice) {
			eight := 8 * gibibyte
			s.Limits.MemoryMax = &eight
			w.port.Tamper(s)
		}, "memory"},
		{"a limit is removed", func(w *fixture, s cgroup.Slice) { s.Limits.TasksMax = nil; w.port.Tamper(s) }, "tasks"},
		{"the slice is removed", func(w *fixture, s cgroup.Slice) { _ = w.port.RemoveSlice(context.Background(), s.Name) }, "it was removed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t, sharedSpec)
			w.Pass(t.Context())
			before := w.slice(t, red)
			c.tamper(w, before)
			w.Pass(t.Context())
			w.Pass(t.Context())
			now := w.slice(t, red)
			if !(cgroup.SliceState{Name: now.Name, Limits: now.Limits, Closed: now.Closed, Devices: now.Devices}).Matches(before) {
				t.Errorf("the slice is %+v, want %+v", now, before)
			}
			at, text := w.LastDrift()
			if n := w.Counters.Drifts.Load(); n != 1 || at.IsZero() || !strings.Contains(text, "red") || !strings.Contains(text, c.says) {
				t.Errorf("%d drifts were reported, the last at %s: %q", n, at, text)
			}
			if uncorrected := w.messages("drift"); len(uncorrected) != 0 {
				t.Errorf("not corrected: %q", uncorrected)
			}
		})
	}
}

// A correction that would disturb a lease is reported and not carried out.
func TestTheLoopTakesNoDisruptiveStep(t *testing.T) {
	w := newFixture(t, sharedSpec)
	w.Pass(t.Context())
	raised, uses := uint64(8<<30), uint64(4<<30)
	s := w.slice(t, red)
	s.Limits.MemoryMax = &raised
	w.port.Tamper(s)
	w.use = map[cgroup.SliceName]isolation.Use{red: {Memory: uses, Leases: []string{"red-part-1"}}}
	writes := w.port.Writes()
	for range 2 {
		w.Pass(t.Context())
	}
	if got := w.slice(t, red); w.port.Writes() != writes || *got.Limits.MemoryMax != raised {
		t.Errorf("%d writes, and the limit is %d", w.port.Writes()-writes, *got.Limits.MemoryMax)
	}
	uncorrected := w.messages("drift")
	if len(uncorrected) != 1 || !strings.Contains(uncorrected[0], "not corrected") || w.Counters.Drifts.Load() != 0 {
		t.Errorf("%d drifts were reported as corrected, and not corrected: %q", w.Counters.Drifts.Load(), uncorrected)
	}
	w.use = nil // The leases ended.
	w.Pass(t.Context())
	if got := w.slice(t, red); *got.Limits.MemoryMax != 1<<30 || len(w.messages("drift")) != 0 {
		t.Errorf("the limit is %d, and not corrected: %q", *got.Limits.MemoryMax, w.messages("drift"))
	}
}

// A node with enforce: observe is not changed.
func TestAnObservedNodeIsNotCorrected(t *testing.T) {
	w := newFixture(t, strings.Replace(sharedSpec, "enforce: on", "enforce: observe", 1))
	w.Pass(t.Context())
	if w.port.Writes() != 0 || w.changes.passes.Load() != 1 {
		t.Errorf("%d writes, and %d passes", w.port.Writes(), w.changes.passes.Load())
	}
}

// A failed correction is retried with every pass and reported.
func TestAFailedCorrectionIsReported(t *testing.T) {
	w := newFixture(t, sharedSpec)
	w.Pass(t.Context())
	s := w.slice(t, red)
	s.Limits.TasksMax = nil
	w.port.Tamper(s)
	w.port.Break(red, cgroup.ErrInUse)
	w.Observer.Observe(t.Context())
	if err := w.Correct(t.Context()); err == nil {
		t.Error("nothing failed")
	}
	w.Refresh(t.Context(), w.Observer.Last())
	if uncorrected := w.messages("drift"); len(uncorrected) != 1 || w.Counters.Drifts.Load() != 0 {
		t.Errorf("not corrected: %q; %d were reported as corrected", uncorrected, w.Counters.Drifts.Load())
	}
}

// Run runs passes on its timer and when it is woken, notifies the watchdog, and ends with its context.
func TestRun(t *testing.T) {
	w := newFixture(t, sharedSpec)
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w.Signal = loop.NewWake()
		ended := make(chan struct{})
		go func() { defer close(ended); w.Run(ctx) }()
		after := func(d time.Duration, passes, notified int64, what string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n := w.changes.passes.Load(); n != passes {
				t.Errorf("%s: %d passes, want %d", what, n, passes)
			}
			if n := w.watchdog.notified.Load(); n != notified {
				t.Errorf("%s: the watchdog was notified %d times, want %d", what, n, notified)
			}
		}
		after(59*time.Second, 0, 2, "before the timer")
		after(2*time.Second, 1, 3, "after it")
		for range 5 {
			w.Signal.Set()
		}
		after(time.Second, 3, 5, "woken five times: one pass for the first, one for the others, and each has all the time of the watchdog")
		w.Signal.Set()
		after(30*time.Second, 4, 7, "woken once more")
		after(29*time.Second, 4, 8, "the timer counts from the last pass")
		after(2*time.Second, 5, 9, "and is due again")
		stop()
		<-ended
	})
	if want := []string{"0 GPUs, 0 leases, 0 requests waiting"}; !slices.Equal(w.watchdog.said, want) {
		t.Errorf("the service manager got %q, want %q: once, as it did not change", w.watchdog.said, want)
	}
}

// The watchdog is notified in the interval that the service manager asks for; without one nothing is sent. A condition is counted
// in the line for the service manager.
func TestWatchdogInterval(t *testing.T) {
	for _, c := range []struct{ interval, period time.Duration }{{0, 50 * time.Second}, {5 * time.Second, 50 * time.Second}, {15 * time.Second, 50 * time.Second}} {
		w := newFixture(t, sharedSpec)
		w.watchdog.interval = c.interval
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			w.Signal = loop.NewWake()
			w.Conditions.Set("state", "leases", "something is wrong", "")
			ended := make(chan struct{})
			go func() { defer close(ended); w.Run(ctx) }()
			time.Sleep(c.period)
			synctest.Wait()
			want := int64(0)
			if c.interval > 0 {
				want = int64(c.period / c.interval)
			}
			if n := w.watchdog.notified.Load(); n != want {
				t.Errorf("with an interval of %s the watchdog was notified %d times in %s, want %d", c.interval, n, c.period, want)
			}
			time.Sleep(time.Minute)
			stop()
			<-ended
		})
		if want := []string{
			"0 GPUs, 0 leases, 0 requests waiting; 1 condition, see 'gpushare status'",
		}; !slices.Equal(w.watchdog.said, want) {
			t.Errorf("the service manager got %q, want %q", w.watchdog.said, want)
		}
	}
}

// A moment in which no request was answered is not the end: the watchdog, of twice the interval, gets the next try.
func TestWatchdogAfterAFailure(t *testing.T) {
	w := newFixture(t, sharedSpec)
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w.Signal = loop.NewWake()
		w.watchdog.failing.Store(true)
		ended := make(chan struct{})
		go func() { defer close(ended); w.Run(ctx) }()
		time.Sleep(w.watchdog.interval + time.Second)
		w.watchdog.failing.Store(false)
		time.Sleep(w.watchdog.interval / 2)
		synctest.Wait()
		if w.watchdog.notified.Load() != 1 {
			t.Errorf("it was notified %d times", w.watchdog.notified.Load())
		}
		stop()
		<-ended
	})
}

var _ changes = (*idleChanges)(nil)

// The events of the driver are sentences: their kind alone says nothing.
func TestEventsOfTheDriverAreSentences(t *testing.T) {
	for _, kind := range []gpu.EventKind{gpu.EventMIGConfig, gpu.EventECC, gpu.EventLost} {
		if text := driverEvents[kind]; !strings.Contains(text, " ") {
			t.Errorf("%s says %q", kind, text)
		}
	}
}

// What the driver reports of the instances that a change creates or removes is no event: the change says what it does.
func TestTheDriversEventsOfAChange(t *testing.T) {
	w := newFixture(t, sharedSpec)
	w.State.SetChanging(&state.OpenChange{GPUs: map[gpu.UUID]bool{"GPU-1": true}})
	events, stop := w.Events.Subscribe()
	defer stop()
	for _, e := range []gpu.Event{
		{Kind: gpu.EventMIGConfig, GPU: "GPU-1"}, {Kind: gpu.EventMIGConfig, GPU: "GPU-2"}, {Kind: gpu.EventLost, GPU: "GPU-1"}, {Kind: "unknown", GPU: "GPU-1"},
	} {
		w.takeDriverEvent(e)
	}
	w.State.EndChange()
	w.takeDriverEvent(gpu.Event{Kind: gpu.EventMIGConfig, GPU: "GPU-1"})
	var got []string
	for range 3 {
		e := <-events.C
		got = append(got, e.Kind+" "+e.GPU)
	}
	if want := []string{"gpu.mig-config GPU-2", "gpu.unavailable GPU-1", "gpu.mig-config GPU-1"}; !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
}
