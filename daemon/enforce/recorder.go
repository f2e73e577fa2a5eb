package enforce

import (
	"time"

	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
)

// Recorder keeps the account of what leases used. Record does not block and takes no lock that is held during a write.
type Recorder interface{ Record(usage.Interval) }

// record reports an interval to the account, if there is one.
func (en *Enforcer) record(i *usage.Interval) {
	if en.Recorder != nil {
		en.Recorder.Record(*i)
	}
}

// unmovedInterval is the time between two reports to the account while the total does not move.
const unmovedInterval = 3 * time.Second

// recordUnmoved reports to the account that the leases use what they used at the last list: the total of the GPU is the same. A
// list may be half a minute old.
func (s *sampler) recordUnmoved(leases []lease.Lease) {
	from, now := s.recordedAt, time.Now()
	if from.IsZero() || now.Sub(from) < unmovedInterval {
		return
	}
	s.recordedAt = now
	for i := range leases {
		s.recordMemory(&leases[i], s.used, from)
	}
}

// recordMemory reports to the account what a lease used from a time until now, by two lists.
func (s *sampler) recordMemory(l *lease.Lease, before map[string]*leaseUse, from time.Time) {
	a, b := before[l.ID], s.used[l.ID]
	if from.IsZero() || a == nil || a.memory == nil || b.memory == nil {
		return
	}
	s.en.record(&usage.Interval{
		Subject: usage.Subject{
			Lease:      l.ID,
			Generation: l.Generation,
			Tenant:     l.Terms.Tenant,
			Grant:      l.Terms.Spec.Name,
			User:       l.User,
			GPU:        s.id,
		},
		From:   from,
		To:     s.recordedAt,
		Memory: &usage.Memory{Mean: *a.memory/2 + *b.memory/2, Peak: max(*a.memory, *b.memory)},
	})
}
