package enforce

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// hotNode is a time-sliced GPU with a lease of red, whose priority is low, and one of blue, and a temperature that the test sets.
type hotNode struct {
	*fixture
	blue    string
	freezer *lapsing

	mu     sync.Mutex // protects the fields below
	heat   health.Heat
	pauses bool
}

// lapsing is a freezer whose thaw watchdog may be missing.
type lapsing struct {
	fakeFreezer
	missing atomic.Bool
}

func (f *lapsing) Ready() error {
	if f.missing.Load() {
		return cgroup.ErrNoThawWatchdog
	}
	return nil
}

func newHotNode(t *testing.T, enforce api.OnOff, ofBlue string, change func(*fixture)) *hotNode {
	t.Helper()
	w := &hotNode{pauses: true}
	w.fixture, w.blue = twoTimeSlicedLeases(t, enforce, func(f *fixture) {
		view := viewOf("notify", new(api.Bytes(limit)))
		view.Generation++
		w.freezer = &lapsing{fakeFreezer: fakeFreezer{f.port}}
		f.Freezer = w.freezer
		view.Grants[0].Priority, view.Grants[1].Priority = "low", ofBlue
		f.Table.Update(view)
		f.Cooling = Cooling{Wake: loop.NewWake(), Heat: func(id gpu.UUID) (health.Heat, bool) {
			if id != testGPU {
				t.Errorf("the heat of %s was read", id)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.heat.At(time.Now()), w.pauses
		}}
		if change != nil {
			change(f)
		}
	})
	return w
}

// read is a reading of the temperature; nil is one that failed.
func (w *hotNode) read(degrees *int) {
	warn := 85
	w.mu.Lock()
	w.heat = w.heat.After(&gpu.Health{Temperature: degrees}, health.Policy{Warn: &warn}, time.Now())
	w.mu.Unlock()
	w.Cooling.Wake.Set()
	synctest.Wait()
}

// reportOnly ends that the spec pauses leases.
func (w *hotNode) reportOnly() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pauses = false
}

// paused are the leases that are frozen because of the temperature.
func (w *hotNode) paused() (out []string) {
	for _, id := range []string{w.lease, w.blue} {
		if slices.Contains(w.frozenFor(id), cgroup.ForTemperature) {
			out = append(out, id)
		}
	}
	return out
}

// condition is what the condition says; empty if there is none.
func (w *hotNode) condition() string {
	for _, c := range w.Conditions.List() {
		if c.Kind == conditionTemperature && c.GPU == string(testGPU) {
			return c.Message
		}
	}
	return ""
}

// informed are how often the user of red was informed of a pause, and of its end.
func (w *hotNode) informed() (paused, continued int) {
	synctest.Wait()
	l, _ := w.Table.Get(w.lease)
	for _, n := range l.Notices {
		paused += strings.Count(n, "it is paused: GPU GPU-1 has ")
		continued += strings.Count(n, "it is not paused any more")
	}
	return paused, continued
}

func (w *hotNode) is(t *testing.T, when string, paused bool) {
	t.Helper()
	var want []string
	if paused {
		want = []string{w.lease}
	}
	if got := w.paused(); !slices.Equal(got, want) {
		t.Errorf("%s paused are %v, want %v", when, got, want)
	}
	if has := w.condition() != ""; has != paused {
		t.Errorf("%s the condition is %q", when, w.condition())
	}
}

// The lease of the lower priority is paused while the GPU is hot, and continues by whatever ends that.
func TestLeasesOfAHotGPUArePaused(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*hotNode){
		"the temperature falls":     func(w *hotNode) { w.read(new(80)) },
		"a reading fails":           func(w *hotNode) { w.read(nil) },
		"there are no readings":     func(*hotNode) { elapse(health.HeatLasts) },
		"the spec reports only":     func(w *hotNode) { w.reportOnly(); elapse(2 * time.Second) },
		"the spec only observes":    func(w *hotNode) { w.enforce("observe", api.ModeTimeslice); elapse(2 * time.Second) },
		"nothing can be frozen now": func(w *hotNode) { w.freezer.missing.Store(true); elapse(2 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newHotNode(t, "on", "normal", nil)
				w.read(new(84))
				w.is(t, "at 84 °C", false)
				w.read(new(85))
				w.is(t, "at 85 °C", true)
				if want := "GPU GPU-1 has 85 °C, and is hot from 85 °C (temperature.do: pause-low): paused until it has 80 °C: " + w.lease; w.condition() != want {
					t.Errorf("the condition says %q", w.condition())
				}
				if r := w.TemperatureRule(w.lease); r == nil || !r.Enforced ||
					r.Desired != "paused until its GPU has 80 °C: GPU GPU-1 has 85 °C, and is hot from 85 °C (temperature.do: pause-low)" {
					t.Errorf("its rule is %+v", r)
				}
				if r := w.TemperatureRule(w.blue); r != nil {
					t.Errorf("the rule of a lease that is not paused is %+v", r)
				}
				for _, degrees := range []int{99, 84, 81, 99} {
					elapse(10 * time.Second)
					w.read(&degrees)
					w.is(t, "while it is hot", true)
				}
				for range 250 { // several rounds of the scheduler
					elapse(10 * time.Millisecond)
					w.is(t, "in a round", true)
				}
				l := api.Lease{ID: w.lease}
				if w.Fill(&l, true); !slices.Equal(l.FrozenFor, []string{"the temperature of its GPU"}) {
					t.Errorf("the status says %q", l.FrozenFor)
				}
				end(w)
				synctest.Wait()
				if got := w.paused(); len(got) > 0 {
					t.Errorf("paused are %v", got)
				}
				if r := w.TemperatureRule(w.lease); r != nil && (r.Enforced || r.Reason == "") {
					t.Errorf("its rule is %+v", r)
				}
				if paused, continued := w.informed(); paused != 1 || continued != 1 {
					t.Errorf("its user was informed of %d pauses and of %d ends", paused, continued)
				}
				w.end()
			})
		})
	}
}

// No lease is paused on a node that only observes, of one priority, or that cannot be frozen; the condition has the reason.
func TestLeasesOfAHotGPUThatAreNotPaused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		enforce api.OnOff
		ofBlue  string
		change  func(*fixture)
		want    string
	}{
		{"the node only observes", "observe", "normal", nil, " is not paused: the node only observes"},
		{"one priority", "on", "low", nil, "no lease is paused, because none of a higher priority runs on it"},
		{"its freeze fails", "on", "high", func(w *fixture) { w.port.setFreezeError(errors.New("no freeze")) }, " is not paused: no freeze"},
		{"nothing can be frozen on this host", "on", "high", func(w *fixture) { w.Freezer = nil }, " is not paused: nothing can be frozen on this host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newHotNode(t, c.enforce, c.ofBlue, c.change)
				w.read(new(90))
				elapse(5 * time.Second)
				synctest.Wait()
				if got := w.paused(); len(got) > 0 {
					t.Errorf("paused are %v", got)
				}
				if !strings.HasSuffix(w.condition(), c.want) {
					t.Errorf("the condition says %q", w.condition())
				}
				w.read(new(40))
				if paused, continued := w.informed(); w.condition() != "" || paused+continued != 0 {
					t.Errorf(
						"afterwards the condition says %q, and its user was informed of %d pauses and of %d ends", w.condition(),
						paused, continued,
					)
				}
				w.end()
			})
		})
	}
}

// A lease that is frozen for a tenant too stays frozen, and none is when the daemon stops. A freeze that was lost is repeated, one
// that failed only with the next reading.
func TestAPauseIsOneReasonOfSeveral(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHotNode(t, "on", "high", nil)
		w.withTenants("on", api.ModeTimeslice)
		w.read(new(90))
		if _, err := call(t, w.PostTenantFreeze, "red"); err != nil {
			t.Fatal(err)
		}
		w.read(new(40))
		if got := w.frozenFor(w.lease); !slices.Contains(got, cgroup.ForAdministrator) || slices.Contains(got, cgroup.ForTemperature) {
			t.Errorf("it is frozen for %v", got)
		}
		w.read(new(90))
		if err := (fakeFreezer{w.port}).Thaw(t.Context(), w.lease, cgroup.ForTemperature); err != nil {
			t.Fatal(err)
		}
		elapse(1100 * time.Millisecond)
		synctest.Wait()
		if len(w.paused()) != 1 {
			t.Error("a freeze that was lost was not repeated")
		}
		w.end()
		if slices.Contains(w.frozenFor(w.lease), cgroup.ForTemperature) {
			t.Error("it is paused after the end")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newHotNode(t, "on", "high", nil)
		w.withTenants("on", api.ModeTimeslice)
		w.read(new(90))
		if _, err := call(t, w.PostTenantFreeze, "blue"); err != nil {
			t.Fatal(err)
		}
		elapse(1100 * time.Millisecond)
		synctest.Wait()
		if got := w.paused(); len(got) > 0 {
			t.Errorf("paused are %v for a lease that is frozen itself", got)
		}
		w.end()
	})
	synctest.Test(t, func(t *testing.T) {
		w := newHotNode(t, "on", "high", nil)
		w.read(new(40))
		w.port.setFreezeError(errors.New("no freeze"))
		before := w.Counters.Freezes.Load()
		w.read(new(90))
		failed := w.paused()
		w.port.setFreezeError(nil)
		elapse(9 * time.Second)
		if len(failed) > 0 || len(w.paused()) > 0 || w.Counters.Freezes.Load() == before {
			t.Errorf("after a failed freeze paused are %v", w.paused())
		}
		w.read(new(90))
		if len(w.paused()) != 1 {
			t.Error("a freeze that failed was not tried with the next reading")
		}
		if err := w.Table.Ending(w.lease, "a test"); err != nil {
			t.Fatal(err)
		}
		w.Cooling.Wake.Set()
		synctest.Wait()
		_, continued := w.informed()
		if l, _ := w.Table.Get(w.lease); l.State != lease.Ending || len(w.paused()) > 0 || continued != 0 {
			t.Errorf("a lease that ends: %s, paused are %v", l.State, w.paused())
		}
		w.end()
	})
}
