package enforce

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/quota"
)

// busyWindow is the time over which the driver's samples are counted; below leastWindow there are too few.
const (
	busyWindow  = 10 * time.Second
	leastWindow = 2 * time.Second
)

// fill adds to a lease what it had of its GPU's time.
func (s *Shares) fill(l *api.Lease, enforced bool) {
	if l.Share == nil || l.Kind != api.ModeTimeslice || len(l.GPUs) != 1 {
		return
	}
	l.Share.Enforced = enforced && l.Isolation.Freeze
	sl := s.get(gpu.UUID(l.GPUs[0]))
	if sl == nil {
		return
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	m := &sl.measured
	l.Share.Enforced = l.Share.Enforced && sl.suspended == nil
	if u, ok := sl.ungated[l.ID]; ok && l.Share.Enforced && u.reported {
		l.Share.Enforced, l.Share.Reason = false, "it cannot be frozen: "+u.err.Error()
	}
	if u, ok := m.usage[l.ID]; ok {
		// With a driver that samples seldom, occupancy is what was planned: it would show a share as met that the lease need not have.
		if status := sl.scheduler.Status(); l.Share.Enforced && status.Enforced && !status.SlowSampler {
			l.Share.Occupancy = percent(u.Recent)
		}
		fillUsage(l.Share, &u)
	}
	if m.sampledAt < leastWindow {
		return // There are too few samples.
	}
	m.busy.Period = sl.scheduler.Status().Period
	shares := m.busy.Shares(m.sampledAt, min(busyWindow, m.sampledAt))
	b, ok := shares[l.ID]
	if !ok {
		return
	}
	l.Share.Busy, l.Share.StdErr = percent(b.Part), percent(b.StdErr)
	var all float64
	for lease := range shares {
		if lease != "" {
			all += shares[lease].Part
		}
	}
	if all > 0 {
		l.Share.OfUsed = percent(b.Part / all)
	}
}

// fillUsage adds what is due to a lease, and how often it was frozen.
func fillUsage(s *api.LeaseShare, u *quota.Usage) {
	if x := u.LastMinute; s.Enforced {
		s.Freezes = &api.LeaseFreezes{
			Count:          x.Count,
			Seconds:        x.Frozen.Seconds(),
			LongestSeconds: x.Longest.Seconds(),
			WaitP50Seconds: x.Wait50.Seconds(),
			WaitP99Seconds: x.Wait99.Seconds(),
		}
	}
	if u.Entitled > 0 {
		s.Due = percent(u.Entitled)
	}
}

func percent(part float64) *float64 {
	p := 100 * part
	return &p
}

// Fill adds to a lease what it had of its GPU's time, and why it is frozen.
func (en *Enforcer) Fill(l *api.Lease, enforced bool) {
	en.Shares.fill(l, enforced)
	if en.Freezer == nil {
		return
	}
	for _, r := range en.Freezer.Reasons(l.ID) {
		if r != cgroup.ForTimeSlice {
			l.FrozenFor = append(l.FrozenFor, r.String())
		}
	}
}

// TimeSlices returns how the time of a GPU is shared; nil when it has no leases that share it.
func (en *Enforcer) TimeSlices(id gpu.UUID) *api.TimeSlices {
	sl := en.Shares.get(id)
	if sl == nil {
		return nil
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	s := sl.scheduler.Status()
	out := &api.TimeSlices{Enforced: s.Enforced, Contended: s.Contended, Reason: s.Reason}
	if s.Enforced {
		out.Exact = new(s.Exact)
	}
	if s.SlowSampler {
		out.Note = fmt.Sprintf(
			"the driver samples this GPU every %.1f s: shares are exact to about ±%.0f points over 10 s", s.Period.Seconds(), s.Exact,
		)
	}
	if sl.suspended != nil {
		out.Reason = "no lease is frozen: " + sl.suspended.Error()
	}
	if part, ok := sl.measured.idle.part(); ok && s.Enforced {
		out.IdleWhileWaiting = percent(part)
	}
	return out
}
