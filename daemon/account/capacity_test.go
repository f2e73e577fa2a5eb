package account

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// The account has the part of the GPU that a lease keeps from others, how much of the time it was held and not used, and what all
// GPUs could have been used since it began.
func TestPartsIdleTimeAndCapacity(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.GPUs = func() []gpu.Identity { return []gpu.Identity{{UUID: "GPU-1", Index: 3}, {UUID: "GPU-2", Index: -1}} }
		w.revise(nil) // Half of the time of the GPU.
		began := time.Now()
		w.busy = part(0)
		w.pass(20 * time.Minute)
		w.busy = part(1)
		w.pass(10 * time.Minute)
		u, e := w.get("root", "by=gpu")
		if e != nil {
			t.Fatal(e)
		}
		r, passed := u.Rows[0], time.Since(began).Milliseconds()
		if len(u.Rows) != 1 || r.GPUIndex == nil || *r.GPUIndex != 3 {
			t.Errorf("the rows are %+v", u.Rows)
		}
		// The lease started before it had these terms, and had a part then as well.
		if r.GPUMeasuredSeconds != r.HeldSeconds || int64(r.HeldSeconds) < passed ||
			2*r.GPUSeconds < r.HeldSeconds-10_000 || 2*r.GPUSeconds > r.HeldSeconds+20_000 {
			t.Errorf("the lease used %s GPU-seconds in %s s, of which %s are measured", r.GPUSeconds, r.HeldSeconds, r.GPUMeasuredSeconds)
		}
		if missing := r.HeldSeconds - r.HeldIdleMeasuredSeconds; missing < 0 || missing > 30_000 || r.HeldIdleSeconds < 1_180_000 ||
			r.HeldIdleSeconds > 1_220_000 {
			t.Errorf("it was idle for %s of %s s", r.HeldIdleSeconds, r.HeldIdleMeasuredSeconds)
		}
		if c := u.Capacity; c == nil || c.GPUs != 2 || int64(c.GPUSeconds) < 2*passed || int64(c.GPUSeconds) > 2*passed+60_000 {
			t.Errorf("the capacity is %+v after %d ms", c, passed)
		}
	})
}
