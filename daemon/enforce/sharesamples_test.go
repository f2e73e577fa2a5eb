package enforce

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/usage"
)

// fakeRecorder keeps what is reported to the account.
type fakeRecorder struct {
	mu   sync.Mutex // protects list
	list []usage.Interval
}

func (r *fakeRecorder) Record(i usage.Interval) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i.Occupancy != nil { // Memory is reported by another loop.
		r.list = append(r.list, i)
	}
}

// The time that is reported of all leases is at most the time that passed, in intervals without a gap.
func TestTheAccountOfTimeAddsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &fakeRecorder{}
		w, blue := twoTimeSlicedLeases(t, "on", func(w *fixture) { w.Recorder = r })
		w.runUntil(40 * time.Second)
		w.end()
		sum, last := map[string]time.Duration{}, map[string]time.Time{}
		var first, end time.Time
		for _, i := range r.list {
			if *i.Occupancy < 0 || *i.Occupancy > i.Length() || i.GPU != testGPU || i.Grant != "part" || i.Tenant == "" ||
				i.Generation == 0 {
				t.Errorf("an interval of %v: %v of %s/%s on %s", i.Length(), *i.Occupancy, i.Tenant, i.Grant, i.GPU)
			}
			if at, ok := last[i.Lease]; ok && !at.Equal(i.From) {
				t.Errorf("%s has a gap of %v", i.Lease, i.From.Sub(at))
			}
			if i.Busy != nil {
				t.Error("a busy time was reported, and the driver reports none")
			}
			last[i.Lease] = i.To
			sum[i.Lease] += *i.Occupancy
			if first.IsZero() {
				first = i.From
			}
			end = i.To
		}
		if len(sum) != 2 || sum[w.lease] == 0 || sum[blue] == 0 {
			t.Fatalf("reported: %v", sum)
		}
		if all := sum[w.lease] + sum[blue]; all > end.Sub(first) || all < end.Sub(first)/2 {
			t.Errorf("%v of %v were reported", all, end.Sub(first))
		}
	})
}

// The processes are read as often as the series where the scheduler learns from them: without a series, and where the driver samples it
// too seldom. The rule decides that, and the matrix of test/fairness reads them by the same rule.
func TestProcessesAreReadEachSecondWithoutAUsableSeries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		period time.Duration
		most   time.Duration // between two readings
	}{
		{"a series", 139 * time.Millisecond, 2 * time.Second},
		{"no series", 0, time.Second},
		{"a series with one sample a second", time.Second, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, _ := twoTimeSlicedLeases(t, "on", func(w *fixture) { w.driver.period = c.period })
				w.runUntil(30 * time.Second)
				before := w.driver.lists.Load()
				w.runUntil(70 * time.Second)
				w.end()
				read, want := w.driver.lists.Load()-before, int64(40*time.Second/c.most)
				if read < want-2 || read > want+2 {
					t.Errorf("read %d times in 40 s, want %d", read, want)
				}
			})
		})
	}
}

// unreadyFreezer is a freezer whose thaw watchdog does not answer for a while.
type unreadyFreezer struct {
	fakeFreezer
	until time.Time
}

func (f unreadyFreezer) Ready() error {
	if time.Now().Before(f.until) {
		return cgroup.ErrNoThawWatchdog
	}
	return nil
}

func (f unreadyFreezer) Freeze(ctx context.Context, id string, reason cgroup.FreezeReason, d time.Duration) error {
	if err := f.Ready(); err != nil {
		return err
	}
	return f.fakeFreezer.Freeze(ctx, id, reason, d)
}

// Without the thaw watchdog all leases run, and the status says so; with it they take turns at once.
func TestTimeIsSharedAgainWithTheThawWatchdog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, blue := twoTimeSlicedLeases(t, "on", func(w *fixture) {
			w.Freezer = unreadyFreezer{fakeFreezer{w.port}, time.Now().Add(20 * time.Second)}
		})
		if frozen := w.port.freezeCounts(); len(frozen) > 0 {
			t.Errorf("%v were frozen", frozen)
		}
		if s := w.TimeSlices(testGPU); s.Enforced || !strings.Contains(s.Reason, "gpushare-thaw does not run") {
			t.Errorf("the status says %+v", s)
		}
		l := api.Lease{
			ID:        w.lease,
			Kind:      api.ModeTimeslice,
			GPUs:      []string{string(testGPU)},
			Share:     &api.LeaseShare{},
			Isolation: api.IsolationStatus{Freeze: true},
		}
		if w.Fill(&l, true); l.Share.Enforced || l.Share.Occupancy != nil {
			t.Errorf("the lease says %+v", l.Share)
		}
		w.runUntil(22 * time.Second)
		if _, leases := frozenOverTwoRounds(w); !leases[w.lease] || !leases[blue] {
			t.Errorf("only %v take turns", leases)
		}
		w.end()
	})
}
