package enforce

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// busySampler is what a sampler knows of the utilisation of its GPU.
type busySampler struct {
	since uint64    // the newest sample, by the driver's clock
	at    time.Time // of the last query; zero: none, or it failed
}

// sampleBusy reports the busy time of the leases of an exclusive GPU or of MPS to the account. For time slices another loop
// does; of MIG instances the driver knows none by process.
func (s *sampler) sampleBusy(ctx context.Context, leases []lease.Lease) {
	x := &s.utilization
	switch s.en.State.Desired().Mode(s.id) {
	case api.ModeExclusive, api.ModeMPS:
	default:
		*x = busySampler{}
		return
	}
	from, at := x.at, time.Now()
	if at.Sub(from) < quota.BusyEvery {
		return
	}
	list, newest, err := s.en.Driver.Utilization(ctx, s.id, x.since)
	if err != nil {
		x.at = time.Time{}
		return
	}
	x.since, x.at = max(x.since, newest), at
	if from.IsZero() {
		return // It is not known for which time the samples are.
	}
	leaseOf := s.en.Attribution.LeaseLookup(len(list))
	parts := quota.PartsOf(list, func(pid int) string { id, _ := leaseOf(pid); return id })
	if u := s.snapshot.Utilization; len(parts) == 0 && u != nil && *u > 0 {
		return // The GPU has work, and no sample says whose: that is not known.
	}
	// The driver may name the MPS server instead of its clients: while a process without a lease is busy, a lease that seems to
	// be idle may be busy.
	unattributed := parts[""] > 0
	for i := range leases {
		l, length := &leases[i], at.Sub(from)
		part := min(parts[l.ID], 1)
		if part == 0 && unattributed || l.State != lease.Running {
			continue
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
			From: from,
			To:   at,
			Busy: &usage.Busy{Time: time.Duration(part * float64(length)), Variance: quota.BusyVariance(part, length)},
		})
	}
}
