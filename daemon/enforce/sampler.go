package enforce

import (
	"context"
	"reflect"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// sampler reads one GPU and decides about its memory, in a goroutine of its own: a GPU whose driver calls hang delays only
// itself.
type sampler struct {
	en    *Enforcer
	id    gpu.UUID
	began time.Time // times of the decisions count from here
	wake  loop.Wake
	stop  context.CancelFunc

	mu     locks.Mutex[locks.Leaf] // guards leases
	leases []lease.Lease

	// Only the loop uses the fields below.
	control  quota.MemoryControl
	spent    time.Duration        // waits for readings, without Enforcer.ReadingTime
	used     map[string]*leaseUse // by the last list of processes
	usedAt   time.Duration
	snapshot gpu.Snapshot // the last one, with the newest memory and processes
	// snapshotAt is when the last snapshot was read, not only the processes.
	snapshotAt time.Duration
	listedAt   time.Time      // zero: not yet, or the last list failed
	recordedAt time.Time      // until when the account has the memory; zero: as listedAt
	desired    *state.Desired // of the last list: other limits and shares apply at the next reading
	total      uint64         // used memory, as shown
	// unattributed is the memory in no process by the last list; nil: unknown. reported: it is large, and that was reported.
	unattributed *uint64
	reported     bool
	exceeded     bool // the budget of the driver's time
	sending      bool // a goroutine sends a signal
	attempt      *stopAttempt
	utilization  busySampler
	sent         chan signalSent
}

func (en *Enforcer) startSampler(ctx context.Context, id gpu.UUID) *sampler {
	ctx, stop := context.WithCancel(ctx)
	s := &sampler{en: en, id: id, began: time.Now(), wake: loop.NewWake(), stop: stop, sent: make(chan signalSent, 1)}
	s.control.Escalation.Owed, s.control.Escalation.Began = en.Table.Owed(), s.began
	en.tasks.Go(func() { s.loop(ctx) })
	return s
}

// give sets the leases of the GPU. If they or their terms are others, it requests a list of its processes: what they use is compared
// with their limits after a list only.
func (s *sampler) give(leases []lease.Lease) {
	s.mu.Lock()
	changed := !sameLeases(s.leases, leases)
	s.leases = leases
	s.mu.Unlock()
	if changed {
		s.wake.Set()
	}
}

func sameLeases(a, b []lease.Lease) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].ID != b[i].ID || a[i].Generation != b[i].Generation || a[i].State != b[i].State ||
			!reflect.DeepEqual(&a[i].Terms, &b[i].Terms) {
			return false
		}
	}
	return true
}

func (s *sampler) now() time.Duration { return time.Since(s.began) }

// loop takes samples until ctx ends, which is when the GPU has no leases any more or the daemon stops.
func (s *sampler) loop(ctx context.Context) {
	defer s.end()
	timer := loop.NewTimer(s.en.SampleInterval())
	defer timer.Stop()
	changed := false // the leases, since the last list
	for {
		list := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			list = changed
		case <-s.wake.C():
			changed = true
			if s.en.State.Desired().Mode(s.id) == api.ModeMIG {
				// An instance bounds the memory of its leases, and the lists of a partitioned GPU are many: they wait for the next
				// reading, and the start of the next lease does not wait for them.
				continue
			}
			list = true
		case r := <-s.sent:
			s.noteSignal(r)
			list = true // What a signal changed is seen at once.
		}
		if list {
			changed = false
		}
		timer.Reset(loop.Together(s.once(ctx, list)))
	}
}

// end thaws what the loop has frozen.
func (s *sampler) end() {
	if s.sending {
		s.noteSignal(<-s.sent) // It has a deadline.
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// No lease is here any more: the frozen ones are thawed, and what their users have used of their graces is owed.
	for _, a := range s.control.Failed(s.now(), nil) {
		s.act(ctx, a, nil)
	}
	s.en.Conditions.NotTogether(conditionDriverTime, string(s.id), driverTimeText)
	s.forgetAttempt()
}
