package enforce

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/usage"
)

// growingDriver is a driver of which a program allocates memory between the list of the processes and the total that follows it.
type growingDriver struct {
	*fakeDriver
	use *uint64
}

func (d *growingDriver) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	s, err := d.fakeDriver.Snapshot(ctx, id)
	*d.use = grownTo
	s.Memory, _ = d.fakeDriver.Memory(ctx, id)
	return s, err
}

// grownTo is more than what the processes are listed for, and less than what is close to the limit.
const grownTo = 80 * mib

// memoryRecorder adds up what is reported of GPU memory.
type memoryRecorder struct {
	mu       sync.Mutex // protects what follows
	known    time.Duration
	byteTime float64 // in bytes × seconds
}

func (r *memoryRecorder) Record(i usage.Interval) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i.Memory != nil {
		r.known += i.Length()
		r.byteTime += float64(i.Memory.Mean) * i.Length().Seconds()
	}
}

// What a program allocates while its memory is read is in the account, and so is the time in which nothing moves, also where the driver
// is so slow that its processes are listed twice a minute.
func TestMemoryInTheAccount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(t, "kill"), &memoryRecorder{}
		w.Recorder = r
		w.port.assign(unusedPID, w.lease)
		var use uint64
		w.driver.sample = func() ([]gpu.Process, error) { return []gpu.Process{on(unusedPID, use)}, nil }
		w.Driver = &growingDriver{w.driver, &use}
		var spent time.Duration
		w.ReadingTime = func(gpu.UUID) time.Duration { spent += 10 * time.Millisecond; return spent }
		w.begin(t)
		const whole = 25 * time.Second
		w.runUntil(whole)
		w.end()
		if r.known < whole-8*time.Second || r.known > whole {
			t.Errorf("the memory is known for %s of %s", r.known, whole)
		}
		if mean := r.byteTime / r.known.Seconds(); mean < 0.8*grownTo || mean > grownTo {
			t.Errorf("the mean is %.1f MiB of 80", mean/mib)
		}
	})
}
