package enforce

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/faultpoint"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// freezeTimeout limits one freeze. A lease that does not freeze in this time is thawed, and the others lose the time.
const freezeTimeout = 50 * time.Millisecond

// Shares carries out the time slices: one loop for each time-sliced GPU with leases.
type Shares struct {
	mu   locks.Mutex[locks.Shares] // protects GPUs
	GPUs map[gpu.UUID]*Slicer
	// left is what payers owe GPUs that have no lease now. The times of all GPUs count from the epoch, so that it can be continued.
	left  map[gpu.UUID]quota.Payers
	epoch time.Time
}

// Slicer schedules the time of one GPU. A time-sliced lease has exactly one GPU, so each GPU is scheduled by itself.
type Slicer struct {
	epoch time.Time // times of the scheduler count from here
	wake  chan struct{}
	stop  context.CancelFunc

	mu        locks.Mutex[locks.Leaf] // protects the fields below
	scheduler *quota.Scheduler
	cfg       quota.Config
	suspended error // why nothing can be frozen now; nil: it can
	members   []quota.Member
	heldAt    time.Duration // when it was read which leases are frozen for another reason
	measured  measured
	ungated   map[string]ungatedLease // those that cannot be frozen
	never     map[string]error        // those that are in place and are never frozen, and why
	unfrozen  map[string]*unfrozenLease

	sampler timeSampler // only the sampling loop uses it
}

// heldInterval is the time after which it is read again which leases are frozen for another reason, without a wake-up.
const heldInterval = 200 * time.Millisecond

// retryFreezer is the time between two checks of whether leases can be frozen again.
const retryFreezer = time.Second

// set gives the leases that a GPU has now; none ends its loop.
func (s *Shares) set(d *Enforcer, id gpu.UUID, round time.Duration, list []quota.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.GPUs[id]
	if len(list) == 0 {
		if sl != nil {
			s.endLocked(id, sl)
		}
		return
	}
	if sl == nil {
		ctx, stop := context.WithCancel(d.tasks.Context())
		if s.epoch.IsZero() {
			s.epoch = time.Now()
		}
		sl = &Slicer{
			epoch: s.epoch, wake: make(chan struct{}, 1), stop: stop, scheduler: quota.NewScheduler(quota.Config{}),
			measured: measured{usage: map[string]quota.Usage{}},
		}
		sl.scheduler.Continue(s.left[id])
		delete(s.left, id)
		s.GPUs[id] = sl
		d.tasks.Go(func() { sl.loop(ctx, d) })
		d.tasks.Go(func() { sl.sampleLoop(ctx, d, id) })
	}
	sl.mu.Lock()
	sl.cfg = quota.Config{Round: round, Rand: rand.Float64, Fallback: true, Concurrent: d.Freezer == nil || !d.State.Desired().Enforcing()}
	sl.configure()
	changed := !slices.EqualFunc(sl.members, list, sameMember)
	if changed {
		sl.members = list
		sl.forgetRuns(list)
		sl.scheduler.SetMembers(time.Since(sl.epoch), list)
	}
	sl.mu.Unlock()
	if changed {
		sl.wakeUp()
	}
}

// endLocked ends the loop of a GPU, which thaws its leases.
func (s *Shares) endLocked(id gpu.UUID, sl *Slicer) {
	sl.stop()
	delete(s.GPUs, id)
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if s.left == nil {
		s.left = map[gpu.UUID]quota.Payers{}
	}
	s.left[id] = sl.scheduler.Leave(time.Since(sl.epoch))
}

// configure gives the settings to the scheduler. The lock is held.
func (sl *Slicer) configure() {
	cfg := sl.cfg
	cfg.Concurrent = cfg.Concurrent || sl.suspended != nil
	sl.scheduler.Configure(cfg)
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
	timer := loop.NewTimer(0)
	defer timer.Stop()
	defer sl.thaw(d)
	defer sl.clearUngated(d)
	for woken := true; ; {
		sl.mu.Lock()
		now := time.Since(sl.epoch)
		if woken || now >= sl.heldAt+heldInterval {
			sl.updateHeld(d, now)
		}
		a := sl.scheduler.Next(now)
		suspended := sl.suspended != nil
		sl.mu.Unlock()
		woken = false
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
		if suspended && !sl.tryFreezer(d) {
			a.Until = min(a.Until, now+retryFreezer)
		}
		timer.Reset(max(a.Until-now, time.Millisecond))
		select {
		case <-timer.C():
		case <-sl.wake:
			woken = true
		case <-ctx.Done():
			return
		}
	}
}

// updateHeld reports to the scheduler which leases are frozen for another reason. The lock is held.
func (sl *Slicer) updateHeld(d *Enforcer, now time.Duration) {
	sl.heldAt = now
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

// freeze freezes a lease, or suspends the time slices when none can be frozen: that is no property of the lease.
func (sl *Slicer) freeze(ctx context.Context, d *Enforcer, a quota.Action) {
	if err := d.Freezer.Ready(); err != nil {
		sl.suspend(d, err)
		return
	}
	began := time.Now()
	err := d.Freezer.Freeze(within{ctx, began.Add(freezeTimeout)}, a.Lease, cgroup.ForTimeSlice, a.Until-time.Since(sl.epoch))
	duration := time.Since(began)
	now := time.Since(sl.epoch)
	d.Counters.Freezes.Add(1)
	if cannotFreeze(err) {
		sl.suspend(d, err)
		return
	}
	sl.mu.Lock()
	sl.scheduler.Froze(a.Lease, now, duration, err)
	sl.noteFreeze(a.Lease, err)
	stops := sl.noteRun(a.Lease, err, now, d.State.Desired().StopsUnfrozen())
	sl.mu.Unlock()
	faultpoint.Hit("slices.charged")
	if err != nil {
		d.Log.Warn("cannot freeze a lease: it continues to run", "lease", a.Lease, "error", err)
	}
	if stops {
		d.stopUnfrozen(a.Lease)
	}
}

// cannotFreeze reports whether an error says that no lease can be frozen.
func cannotFreeze(err error) bool {
	return errors.Is(err, cgroup.ErrNoThawWatchdog) || errors.Is(err, cgroup.ErrFreezerClosed)
}

// suspend lets all leases run until leases can be frozen again.
func (sl *Slicer) suspend(d *Enforcer, err error) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.suspended == nil {
		d.Log.Error("time shares are not enforced", "message_id", report.MessageSharesSuspended, "error", err)
	}
	sl.suspended = err
	sl.configure()
}

// tryFreezer ends suspend when leases can be frozen again.
func (sl *Slicer) tryFreezer(d *Enforcer) bool {
	if d.Freezer.Ready() != nil {
		return false
	}
	d.Log.Info("time shares are enforced again", "message_id", report.MessageSharesResumed)
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.suspended = nil
	sl.configure()
	sl.wakeUp()
	return true
}

// renew moves the thaw deadline of a lease that stays frozen.
func (sl *Slicer) renew(ctx context.Context, d *Enforcer, a quota.Action) {
	err := d.Freezer.Freeze(within{ctx, time.Now().Add(freezeTimeout)}, a.Lease, cgroup.ForTimeSlice, a.Until-time.Since(sl.epoch))
	if err == nil {
		return
	}
	if cannotFreeze(err) {
		sl.suspend(d, err)
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.scheduler.Thawed(a.Lease, time.Since(sl.epoch), 0, nil) // after an error it is not frozen
	d.Log.Warn("cannot move the thaw deadline of a lease: it continues to run", "lease", a.Lease, "error", err)
}

func (sl *Slicer) thawOne(ctx context.Context, d *Enforcer, id string) {
	began := time.Now()
	err := d.Freezer.Thaw(within{context.WithoutCancel(ctx), began.Add(time.Second)}, id, cgroup.ForTimeSlice)
	duration := time.Since(began)
	now := time.Since(sl.epoch)
	sl.mu.Lock()
	sl.scheduler.Thawed(id, now, duration, err)
	sl.mu.Unlock()
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
	leases := sl.scheduler.FrozenLeases() // also those that are no members any more
	for i := range sl.members {
		if id := sl.members[i].Lease; !slices.Contains(leases, id) {
			leases = append(leases, id)
		}
	}
	sl.mu.Unlock()
	for _, id := range leases {
		if err := d.Freezer.Thaw(ctx, id, cgroup.ForTimeSlice); err != nil {
			d.Log.Error("cannot thaw a lease", "lease", id, "error", err)
		}
	}
}

// ThawAll ends all loops, which thaw their leases.
func (s *Shares) ThawAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, sl := range s.GPUs {
		s.endLocked(id, sl)
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
