package enforce

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// freezeTimeout limits one freeze. A lease that does not freeze in this time is thawed, and the others lose the time.
const freezeTimeout = 50 * time.Millisecond

// Shares carries out the time slices: one loop for each time-sliced GPU with leases.
type Shares struct {
	mu   locks.Mutex[locks.Shares] // protects GPUs
	GPUs map[gpu.UUID]*Slicer
}

// Slicer schedules the time of one GPU.
type Slicer struct {
	epoch time.Time // times of the scheduler count from here
	wake  chan struct{}
	stop  context.CancelFunc

	mu        locks.Mutex[locks.Leaf] // protects the fields below
	scheduler *quota.Scheduler
	members   []quota.Member
	busy      quota.Busy    // from the driver's samples
	sampledAt time.Duration // when the driver was queried for samples
	since     uint64        // the newest row's time, on the driver's clock
	usage     map[string]quota.Usage
	enforced  bool

	observing locks.Mutex[locks.Sampling] // one query to the driver at a time; taken before mu; protects samples
	samples   quota.SampleClock
}

// busyWindow is the time over which the driver's samples are counted; below leastWindow there are too few.
const (
	busyWindow  = 10 * time.Second
	leastWindow = 2 * time.Second
)

// set gives the leases that a GPU has now; none ends its loop.
func (s *Shares) set(d *Enforcer, id gpu.UUID, round time.Duration, list []quota.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.GPUs[id]
	if len(list) == 0 {
		if sl != nil {
			sl.stop()
			delete(s.GPUs, id)
		}
		return
	}
	if sl == nil {
		ctx, stop := context.WithCancel(d.tasks.Context())
		sl = &Slicer{
			epoch: time.Now(), wake: make(chan struct{}, 1), stop: stop,
			scheduler: quota.NewScheduler(quota.Config{Round: round, Rand: rand.Float64, Fallback: true}),
			usage:     map[string]quota.Usage{},
		}
		s.GPUs[id] = sl
		d.tasks.Go(func() { sl.loop(ctx, d) })
	}
	sl.mu.Lock()
	sl.scheduler.Configure(quota.Config{Round: round, Rand: rand.Float64, Fallback: true, Concurrent: d.Freezer == nil || !d.State.Desired().Enforcing()})
	sl.members = list
	sl.scheduler.SetMembers(time.Since(sl.epoch), list)
	sl.mu.Unlock()
	sl.wakeUp()
}

// wakeUp wakes all loops: a lease was frozen or thawed for another reason.
func (s *Shares) wakeUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.GPUs {
		sl.wakeUp()
	}
}

func (s *Shares) get(id gpu.UUID) *Slicer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.GPUs[id]
}

func (sl *Slicer) wakeUp() {
	select {
	case sl.wake <- struct{}{}:
	default:
	}
}

// loop carries out the decisions of the scheduler, and reports the results to it.
func (sl *Slicer) loop(ctx context.Context, d *Enforcer) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer sl.thaw(d)
	for {
		sl.mu.Lock()
		now := time.Since(sl.epoch)
		sl.updateHeld(d, now)
		a := sl.scheduler.Next(now)
		sl.enforced = sl.scheduler.Status().Enforced
		sl.mu.Unlock()
		switch a.Kind {
		case quota.Freeze:
			sl.freeze(ctx, d, a)
			continue
		case quota.Thaw:
			sl.thawOne(ctx, d, a.Lease)
			continue
		case quota.Renew:
			sl.renew(ctx, d, a)
			continue
		case quota.Wait:
		}
		timer.Reset(max(a.Until-now, time.Millisecond))
		select {
		case <-timer.C:
		case <-sl.wake:
		case <-ctx.Done():
			return
		}
	}
}

// updateHeld reports to the scheduler which leases are frozen for another reason. The lock is held.
func (sl *Slicer) updateHeld(d *Enforcer, now time.Duration) {
	changed := false
	for i := range sl.members {
		m := &sl.members[i]
		if held := d.withheld(m.Lease); held != m.Held {
			m.Held, changed = held, true
		}
	}
	if changed {
		sl.scheduler.SetMembers(now, sl.members)
	}
}

func (sl *Slicer) freeze(ctx context.Context, d *Enforcer, a quota.Action) {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	began := time.Now()
	err := d.Freezer.Freeze(ctx, a.Lease, cgroup.ForTimeSlice, a.Until-time.Since(sl.epoch))
	d.Counters.Freezes.Add(1)
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.scheduler.Froze(a.Lease, time.Since(sl.epoch), time.Since(began), err)
	if err != nil {
		d.Log.Warn("cannot freeze a lease: it continues to run", "lease", a.Lease, "error", err)
	}
}

// renew moves the thaw deadline of a lease that stays frozen.
func (sl *Slicer) renew(ctx context.Context, d *Enforcer, a quota.Action) {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	err := d.Freezer.Freeze(ctx, a.Lease, cgroup.ForTimeSlice, a.Until-time.Since(sl.epoch))
	if err == nil {
		return
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.scheduler.Thawed(a.Lease, time.Since(sl.epoch), 0, nil) // after an error it is not frozen
	d.Log.Warn("cannot move the thaw deadline of a lease: it continues to run", "lease", a.Lease, "error", err)
}

func (sl *Slicer) thawOne(ctx context.Context, d *Enforcer, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	began := time.Now()
	err := d.Freezer.Thaw(ctx, id, cgroup.ForTimeSlice)
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.scheduler.Thawed(id, time.Since(sl.epoch), time.Since(began), err)
	if err != nil {
		d.Log.Error("cannot thaw a lease", "lease", id, "error", err)
	}
}

// thaw thaws all leases when the loop ends: time slices fail open.
func (sl *Slicer) thaw(d *Enforcer) {
	if d.Freezer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	sl.mu.Lock()
	defer sl.mu.Unlock()
	for _, m := range sl.members {
		if err := d.Freezer.Thaw(ctx, m.Lease, cgroup.ForTimeSlice); err != nil {
			d.Log.Error("cannot thaw a lease", "lease", m.Lease, "error", err)
		}
	}
}

// ThawAll ends all loops, which thaw their leases.
func (s *Shares) ThawAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, sl := range s.GPUs {
		sl.stop()
		delete(s.GPUs, id)
	}
}

// prune ends the loops of GPUs without leases.
func (s *Shares) prune(d *Enforcer, live map[gpu.UUID][]lease.Lease) {
	s.mu.Lock()
	var removed []gpu.UUID
	for id := range s.GPUs {
		if live[id] == nil {
			removed = append(removed, id)
		}
	}
	s.mu.Unlock()
	for _, id := range removed {
		s.set(d, id, 0, nil)
	}
}

// utilizationTimeout limits one query for samples.
const utilizationTimeout = time.Second

// observe reads the driver's samples since the last query and gives them to the scheduler. While another query runs it does
// nothing. A driver without samples is no error: the scheduler then takes each backlog as zero and each lease as busy.
func (sl *Slicer) observe(ctx context.Context, d *Enforcer, id gpu.UUID) {
	if !sl.observing.TryLock() {
		return
	}
	defer sl.observing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, utilizationTimeout)
	defer cancel()
	sl.mu.Lock()
	since, previous := sl.since, sl.sampledAt
	sl.mu.Unlock()
	clocks, err := sl.clocks()
	if err != nil {
		return
	}
	now := clocks.Now
	series, seriesErr := d.Driver.UtilizationSeries(ctx, id, sl.samples.Since())
	list, newest, err := d.Driver.Utilization(ctx, id, since)
	leaseOf := d.Attribution.LeaseLookup(len(list))
	owner := func(pid int) string { lease, _ := leaseOf(pid); return lease }
	sl.mu.Lock()
	defer sl.mu.Unlock()
	elapsed := time.Since(sl.epoch)
	if seriesErr == nil {
		sl.scheduler.ObserveUtilization(elapsed, sl.samples.Convert(id, clocks, series.Samples))
	}
	if err == nil {
		sl.since, sl.sampledAt = max(newest, since), now
		sl.busy.Add(previous, now, list, owner)
		sl.scheduler.ObserveProcesses(elapsed, previous, now, sl.busy.Last())
	}
	for _, u := range sl.scheduler.Usage(elapsed) {
		sl.usage[u.Lease] = u
	}
}

// clocks reads the clocks of the scheduler and of the driver's samples.
func (sl *Slicer) clocks() (quota.Clocks, error) {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return quota.Clocks{}, err
	}
	now := time.Now()
	return quota.Clocks{Now: now.Sub(sl.epoch), Epoch: uint64(now.UnixMicro()), Boot: uint64(boot.Nano() / 1000)}, nil
}

// fill adds to a lease what it had of its GPU's time.
func (s *Shares) fill(l *api.Lease, enforced bool) {
	if l.Share == nil || l.Kind != api.ModeTimeslice || len(l.GPUs) != 1 {
		return
	}
	enforced = enforced && l.Isolation.Freeze
	l.Share.Enforced = enforced
	sl := s.get(gpu.UUID(l.GPUs[0]))
	if sl == nil {
		return
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if u, ok := sl.usage[l.ID]; ok && enforced && sl.enforced {
		p := 100 * u.Recent
		l.Share.Occupancy = &p
	}
	if sl.sampledAt < leastWindow {
		return // There are too few samples.
	}
	if b, ok := sl.busy.Shares(sl.sampledAt, min(busyWindow, sl.sampledAt))[l.ID]; ok {
		part, e := 100*b.Part, 100*b.StdErr
		l.Share.Busy, l.Share.StdErr = &part, &e
	}
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
	return &api.TimeSlices{Enforced: s.Enforced, Reason: s.Reason}
}
