package enforce

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// shareOf is what is shown of the share of a lease.
func shareOf(w *fixture, id string) *api.LeaseShare {
	l := api.Lease{
		ID:        id,
		Kind:      api.ModeTimeslice,
		GPUs:      []string{string(testGPU)},
		Share:     &api.LeaseShare{Entitled: 50},
		Isolation: api.IsolationStatus{Freeze: true},
	}
	w.Fill(&l, true)
	return l.Share
}

// TestSharesAreShownAsMeasured checks what is shown of a share: that it is met if it was measured to be, that it is not if it was measured
// not to be, and neither while the driver's answers are missing: those are no time in which no lease did anything.
func TestSharesAreShownAsMeasured(t *testing.T) {
	t.Parallel()
	half := []gpu.UtilSample{{PID: unusedPID, SM: 50}, {PID: unusedPID + 1, SM: 50}}
	for _, c := range []struct {
		name   string
		period time.Duration
		list   []gpu.UtilSample // from 50 s on
		err    error            // the same
		want   string
		busy   bool
		why    string
	}{
		{name: "each has half", period: 139 * time.Millisecond, list: half, want: api.ShareMet, busy: true},
		{
			name:   "one has a tenth",
			period: 139 * time.Millisecond,
			list:   []gpu.UtilSample{{PID: unusedPID, SM: 10}, {PID: unusedPID + 1, SM: 90}},
			want:   api.ShareUnmet,
			busy:   true,
			why:    "it had 10% of the 50% that are due",
		},
		{
			name:   "the driver fails",
			period: 139 * time.Millisecond,
			err:    errors.New("it is lost"),
			want:   api.ShareUnmeasured,
			why:    "the driver does not say which processes use the GPU",
		},
		{
			name:   "the GPU is busy, and the driver names no process",
			period: 139 * time.Millisecond,
			want:   api.ShareUnmeasured,
			why:    "the driver does not say which processes use the GPU",
		},
		{
			name:   "the driver samples once a second",
			period: time.Second,
			list:   half,
			want:   api.ShareUnmeasured,
			busy:   true,
			why:    "samples this GPU every 1.0 s: shares are exact to about ±6 points",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := &recorded{}
				var fault time.Time
				w, _ := twoTimeSlicedLeases(t, "on", func(w *fixture) {
					w.driver.period = c.period
					fault = time.Now().Add(50 * time.Second)
					w.Recorder = r
					w.Driver = &utilizedDriver{w.driver, func() ([]gpu.UtilSample, error) {
						if time.Now().Before(fault) {
							return half, nil
						}
						return c.list, c.err
					}}
				})
				w.runUntil(52 * time.Second)
				before := r.knownNow()
				w.runUntil(80 * time.Second)
				s := shareOf(w, w.lease)
				w.end()
				if s.State != c.want || !strings.Contains(s.Why, c.why) {
					t.Errorf("%s, %q; want %s, %q", s.State, s.Why, c.want, c.why)
				}
				if s.Enforced == (c.want == api.ShareUnmet) {
					t.Errorf("enforced: %v, although it is %s", s.Enforced, s.State)
				}
				if (s.Within != nil) != (c.want == api.ShareMet) {
					t.Errorf("within %v, although it is %s", s.Within, s.State)
				}
				if (s.Busy != nil) != c.busy {
					t.Errorf("a use of %v is shown; want one: %v", s.Busy, c.busy)
				}
				if known := r.knownNow() - before; (known > 20*time.Second) != c.busy {
					t.Errorf("the account knows %v of 2 leases in 28 s more; known: %v", known, c.busy)
				}
			})
		})
	}
}
