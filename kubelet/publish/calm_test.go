package publish_test

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// The number of leases that claims may have falls at once with a local lease of the same grant, and rises at once, or, if it has risen
// within the minute before, when none was there for a while.
func TestCountersFallAtOnce(t *testing.T) {
	t.Parallel()
	two := 2
	start := time.Now()
	var m publish.Memory
	for _, c := range []struct {
		after  time.Duration
		leases int
		want   int64
		wait   time.Duration
	}{
		{0, 0, 2, 0},
		{1 * time.Second, 1, 1, 0},
		{2 * time.Second, 0, 2, 0}, // The first time it rises at once.
		{3 * time.Second, 1, 1, 0},
		{4 * time.Second, 0, 1, 9 * time.Second},
		{8 * time.Second, 1, 1, 0},
		{17 * time.Second, 0, 1, time.Second},
		{18 * time.Second, 0, 2, 0},
		{19 * time.Second, 0, 2, 0},
		{50 * time.Second, 1, 1, 0},
		{51 * time.Second, 0, 1, 9 * time.Second}, // It has risen less than a minute before.
		{60 * time.Second, 0, 2, 0},
		{130 * time.Second, 1, 1, 0},
		{131 * time.Second, 0, 2, 0},
	} {
		n := wholeGPUs(first, second, third)
		n.Tenant.Grants[0].MaxLeases = &two
		for range c.leases {
			n.Status.Leases = append(n.Status.Leases, api.Lease{ID: "l", Tenant: "kubernetes", Grant: "one", State: api.LeaseRunning})
		}
		r, wait := m.Resources(n, pool, start.Add(c.after))
		counter := r.Pools[pool].Slices[0].SharedCounters[0].Counters["leases"]
		if got := counter.Value.Value(); got != c.want || wait != c.wait {
			t.Errorf(
				"after %s, with %d local leases: %d for claims, and a wait of %s; want %d, %s",
				c.after,
				c.leases,
				got,
				wait,
				c.want,
				c.wait,
			)
		}
	}
}
