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
	if err := sl.never[l.ID]; err != nil {
		l.Share.Enforced, l.Share.Reason = false, err.Error()
	}
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
	sl.fillState(l)
	sl.fillBusy(l)
}

// fillState adds whether a lease has its share. The lock is held.
func (sl *Slicer) fillState(l *api.Lease) {
	status := sl.scheduler.Status()
	if l.Share.Enforced && status.Contended && !status.Enforced {
		l.Share.Enforced, l.Share.Reason = false, status.Reason
	}
	v := sl.scheduler.Verdict(time.Since(sl.epoch), l.ID)
	l.Share.State, l.Share.Why = string(v.State), v.Reason
	switch v.State {
	case quota.Met, quota.Less:
		l.Share.Within = percent(v.Within)
	case quota.Unmet:
		l.Share.Why = fmt.Sprintf("it had %.0f%% of the %.0f%% that are due: %s", 100*v.Got, 100*v.Due, v.Reason)
		if l.Share.Enforced {
			l.Share.Enforced, l.Share.Reason = false, l.Share.Why
		}
	case quota.Unmeasured:
	}
}

// fillBusy adds what the driver's samples of processes say that a lease used. A lease of which they say nothing has none. The lock is
// held.
func (sl *Slicer) fillBusy(l *api.Lease) {
	m := &sl.measured
	m.busy.Period = sl.scheduler.Status().Period
	now := time.Since(sl.epoch)
	window := min(busyWindow, now)
	if u, ok := m.usage[l.ID]; ok {
		window = min(window, now-u.Since) // What it did before it came is not known.
	}
	b, ok := m.busy.Share(now, window, l.ID)
	if !ok || b.OfWindow < leastWindow {
		return // There are too few samples, or those that there are, are old.
	}
	l.Share.Busy, l.Share.StdErr = percent(b.Part), percent(b.StdErr)
	shares := m.busy.Shares(now, window)
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
		out.Note = quota.SlowSamplerText(s.Period, s.Exact)
	}
	if sl.suspended != nil {
		out.Reason = "no lease is frozen: " + sl.suspended.Error()
	}
	if part, ok := sl.measured.idle.part(); ok && s.Enforced {
		out.IdleWhileWaiting = percent(part)
	}
	return out
}
