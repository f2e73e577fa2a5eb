package metrics

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/usage"
)

// Totals adds up what leases used since gpushared started. The zero value works.
type Totals struct {
	mu  locks.Mutex[locks.Leaf] // guards all
	all map[totalKey]*total
}

// Recorder gives what leases used to the account and to Totals.
type Recorder struct {
	Account interface{ Record(i usage.Interval) }
	Totals  *Totals
}

// Record implements enforce.Recorder.
func (r Recorder) Record(i usage.Interval) {
	r.Account.Record(i)
	r.Totals.Record(&i)
}

type totalKey struct {
	gpu          gpu.UUID
	tenant, user string
}

type total struct{ busy, occupancy *time.Duration }

// mostTotals bounds the series. What users after that use is counted to the user "others" of their tenant.
const mostTotals = 4096

// Record adds an interval.
func (t *Totals) Record(i *usage.Interval) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := totalKey{i.GPU, i.Tenant, i.User}
	if t.all[key] == nil {
		if t.all == nil {
			t.all = map[totalKey]*total{}
		}
		if len(t.all) >= mostTotals {
			key.user = "others"
		}
		if t.all[key] == nil {
			t.all[key] = &total{}
		}
	}
	sum := t.all[key]
	if i.Busy != nil {
		sum.busy = longer(sum.busy, i.Busy.Time)
	}
	if i.Occupancy != nil {
		sum.occupancy = longer(sum.occupancy, *i.Occupancy)
	}
}

func longer(sum *time.Duration, by time.Duration) *time.Duration {
	by = max(0, by)
	if sum != nil {
		by += *sum
	}
	return &by
}

// list returns what sees allows.
func (t *Totals) list(sees func(tenant string) bool) []Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Usage
	for k, v := range t.all {
		if sees(k.tenant) {
			out = append(out, Usage{GPU: k.gpu, Tenant: k.tenant, User: k.user, Busy: v.busy, Occupancy: v.occupancy})
		}
	}
	return out
}
