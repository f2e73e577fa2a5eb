package enforce

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/usage"
)

// utilizedDriver has the utilisation of the processes.
type utilizedDriver struct {
	*fakeDriver
	utilization func() ([]gpu.UtilSample, error)
}

func (d *utilizedDriver) Utilization(context.Context, gpu.UUID, uint64) ([]gpu.UtilSample, uint64, error) {
	list, err := d.utilization()
	return list, 1, err
}

// recorded is what a lease used, as reported.
type recorded struct {
	mu          sync.Mutex // protects the fields below
	known, busy time.Duration
}

func (r *recorded) Record(i usage.Interval) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i.Busy != nil {
		r.known, r.busy = r.known+i.Length(), r.busy+i.Busy.Time
	}
}

// knownNow is for how long it is known while more is recorded.
func (r *recorded) knownNow() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}

// The busy time of a lease that has its GPU alone, or shares it by MPS, is reported where it is known, and nothing where it is
// not.
func TestBusyTimeIsReported(t *testing.T) {
	t.Parallel()
	const foreign = unusedPID + 1
	for _, c := range []struct {
		name        string
		mode        string
		list        []gpu.UtilSample
		err         error
		known, busy time.Duration // of 62 s
	}{
		{"exclusive", api.ModeExclusive, []gpu.UtilSample{{PID: unusedPID, SM: 50}}, nil, 60 * time.Second, 30 * time.Second},
		{"MPS", api.ModeMPS, []gpu.UtilSample{{PID: unusedPID, SM: 25}}, nil, 60 * time.Second, 15 * time.Second},
		{"idle", api.ModeExclusive, nil, nil, 60 * time.Second, 0},
		{"the MPS server is busy", api.ModeMPS, []gpu.UtilSample{{PID: foreign, SM: 25}}, nil, 0, 0},
		{"both are", api.ModeMPS, []gpu.UtilSample{{PID: unusedPID, SM: 25}, {PID: foreign, SM: 25}}, nil, 60 * time.Second, 15 * time.Second},
		{"more than all", api.ModeExclusive, []gpu.UtilSample{{PID: unusedPID, SM: 90}, {PID: unusedPID, SM: 90}}, nil, 60 * time.Second, 60 * time.Second},
		{"the driver does not know", api.ModeExclusive, nil, gpu.ErrNotSupported, 0, 0},
		{"the driver fails", api.ModeExclusive, nil, errors.New("it is lost"), 0, 0},
		{"MIG", api.ModeMIG, []gpu.UtilSample{{PID: unusedPID, SM: 50}}, nil, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, r := newFixture(t, "observe"), &recorded{}
				w.port.assign(unusedPID, w.lease)
				w.driver.sample = func() ([]gpu.Process, error) { return []gpu.Process{on(unusedPID, 1)}, nil }
				w.Driver = &utilizedDriver{w.driver, func() ([]gpu.UtilSample, error) { return c.list, c.err }}
				w.Recorder = r
				w.enforce("on", c.mode)
				w.begin(t)
				w.runUntil(62 * time.Second)
				w.end()
				if r.known != c.known || r.busy != c.busy {
					t.Errorf("busy for %v of %v, want %v of %v", r.busy, r.known, c.busy, c.known)
				}
			})
		})
	}
}
