package enforce

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// readTimeout limits one reading of a GPU.
const readTimeout = 2 * time.Second

// processesMaxAge is how long the last list of processes is used for time slices after the driver stopped answering.
const processesMaxAge = 5 * time.Second

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

// leaseUse is what the processes of a lease use of the GPU.
type leaseUse struct {
	memory    *uint64 // bytes; nil: the driver does not report that of a process
	processes map[int]bool
}

func (en *Enforcer) startSampler(ctx context.Context, id gpu.UUID) *sampler {
	ctx, stop := context.WithCancel(ctx)
	s := &sampler{en: en, id: id, began: time.Now(), wake: loop.NewWake(), stop: stop, sent: make(chan signalSent, 1)}
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
			!reflect.DeepEqual(a[i].Terms, b[i].Terms) {
			return false
		}
	}
	return true
}

func (s *sampler) now() time.Duration { return time.Since(s.began) }

// loop takes samples until ctx ends, which is when the GPU has no leases any more or the daemon stops.
func (s *sampler) loop(ctx context.Context) {
	defer s.end()
	timer := time.NewTimer(s.en.SampleInterval())
	defer timer.Stop()
	changed := false // the leases, since the last list
	for {
		list := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, id := range s.control.Escalation.Frozen() {
		s.report("thaw", id, s.en.frozen.thaw(ctx, s.en, s, id))
	}
	s.en.Conditions.Clear(conditionDriverTime, string(s.id))
	if s.sending {
		s.noteSignal(<-s.sent) // It has a deadline.
	}
	s.forgetAttempt()
}

// once reads the memory of the GPU, and its processes if that is due. It returns the time until the next reading.
func (s *sampler) once(ctx context.Context, list bool) time.Duration {
	s.mu.Lock()
	leases := s.leases
	s.mu.Unlock()
	longest := s.en.SampleInterval()
	read, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	began := time.Now()
	memory, err := s.en.Driver.Memory(read, s.id)
	now := s.now()
	device := s.device(memory)
	switch {
	case err != nil:
		s.failed(ctx, now, leases)
	case s.control.Read(now, memory.Used, device, longest) || list || s.desired != s.en.State.Desired():
		s.list(read, ctx, memory, leases)
	default:
		if s.en.Samples.PutMemory(s.id, memory, s.en.Now()) {
			s.en.Invalidate()
		}
		if memory.Used == s.total && s.control.Sampling.Moved() == 0 {
			s.recordUnmoved(leases)
		}
		s.total = memory.Used
	}
	s.sampleBusy(read, leases)
	s.account(time.Since(began))
	if err != nil {
		return longest
	}
	return s.control.Next(s.now(), device, longest)
}

// device is the GPU's free memory and its reserve.
func (s *sampler) device(m gpu.Memory) quota.DeviceMemory {
	return quota.DeviceMemory{Free: &m.Free, Reserve: s.en.State.Desired().GPUMemoryReserve(s.id)}
}

// list reads the processes of the GPU, decides and acts. The reading is limited by its context, the actions are not.
func (s *sampler) list(read, ctx context.Context, memory gpu.Memory, leases []lease.Lease) {
	s.desired = s.en.State.Desired()
	sample, err := s.readSample(read, memory)
	now := s.now()
	if err != nil {
		s.failed(ctx, now, leases)
		return
	}
	s.total = sample.Memory.Used
	s.crossCheck(&sample)
	s.en.Samples.Put(s.id, sample)
	before, from := s.used, s.recordedAt
	s.used, s.usedAt, s.listedAt = s.en.usesOf(leases, sample.Processes), now, time.Now()
	s.recordedAt = s.listedAt
	for i := range leases {
		s.recordMemory(&leases[i], before, from)
	}
	// The total that was read before the processes: what was allocated in between moves the next one, and they are listed again.
	s.carry(ctx, s.control.Listed(now, memory.Used, s.device(sample.Memory), s.en.accounts(leases, s.used)), leases, s.used)
	s.en.slice(s.id, leases, s.used)
}

// crossCheck reports GPU memory that no process accounts for. No lease is blamed for it. Memory and processes are read one
// after the other, so that memory which was freed in between appears in one list only: the lower one of two lists counts.
func (s *sampler) crossCheck(sample *observe.GPUSample) {
	newest := sample.Unattributed
	if newest == nil {
		s.unattributed = nil
		return
	}
	if s.unattributed != nil {
		sample.Unattributed = new(min(*newest, *s.unattributed))
	} else {
		sample.Unattributed = new(uint64)
	}
	s.unattributed = newest
	large := *sample.Unattributed >= quota.UnattributedLarge
	if large && !s.reported {
		text := fmt.Sprintf("GPU %s has %s of GPU memory in no process", s.id, api.Bytes(*sample.Unattributed).Short())
		s.en.Log.Warn(
			"GPU memory in no process: managed memory, a process of another pid namespace, or memory that was not freed", "gpu", s.id,
			"bytes", *sample.Unattributed,
		)
		s.en.Events.Publish(api.Event{Kind: "memory.unattributed", GPU: string(s.id), Message: text})
	}
	s.reported = large
}

// failed continues with last known values: no lease is frozen or stopped on them, and those that are frozen get their breaks.
func (s *sampler) failed(ctx context.Context, now time.Duration, leases []lease.Lease) {
	s.listedAt, s.recordedAt = time.Time{}, time.Time{}
	s.carry(ctx, s.control.Failed(now, s.en.accounts(leases, nil)), leases, nil)
	if now >= s.usedAt+processesMaxAge {
		s.used = nil
	}
	s.en.slice(s.id, leases, s.used)
}

// carry carries out decisions, and shows what the leases use. used is nil when nothing was measured.
func (s *sampler) carry(ctx context.Context, actions []quota.MemoryAction, leases []lease.Lease, used map[string]*leaseUse) {
	for _, a := range actions {
		s.act(ctx, a, leases)
	}
	for i := range leases {
		s.show(&leases[i], used)
	}
	s.en.Invalidate()
}

// show puts what a lease uses into the samples.
func (s *sampler) show(l *lease.Lease, used map[string]*leaseUse) {
	r := observe.LeaseReading{Failed: true}
	if u := used[l.ID]; u != nil {
		r = observe.LeaseReading{Memory: u.memory, At: s.listedAt, Failed: u.memory == nil}
		for pid := range u.processes {
			r.Processes = append(r.Processes, pid)
		}
	}
	r.Stage = s.control.Stage(accountOf(l), l.ID)
	s.en.Samples.PutLease(l.ID, s.id, r)
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

// conditionDriverTime says that the readings of a GPU take more of the driver's time than intended.
const conditionDriverTime = "driver-time"

// account charges the driver's time of the readings, and reports when it exceeds the budget.
func (s *sampler) account(waited time.Duration) {
	s.spent += waited
	total := s.spent
	if s.en.ReadingTime != nil {
		total = s.en.ReadingTime(s.id)
	}
	now := s.now()
	s.control.Sampling.Spent(now, total)
	load, exceeded := s.control.Sampling.DriverLoad(now)
	if exceeded == s.exceeded {
		return
	}
	s.exceeded = exceeded
	if !exceeded {
		s.en.Conditions.Clear(conditionDriverTime, string(s.id))
		return
	}
	s.en.Conditions.Set(
		conditionDriverTime,
		string(s.id),
		fmt.Sprintf("readings of GPU %s take %s of the driver's time each second, more than 2ms", s.id, load.Round(100*time.Microsecond)),
		"their processes are listed less often; a newer driver lists processes faster",
	)
}

// usesOf adds up what each lease uses.
func (en *Enforcer) usesOf(leases []lease.Lease, processes []gpu.Process) map[string]*leaseUse {
	used := make(map[string]*leaseUse, len(leases))
	for i := range leases {
		used[leases[i].ID] = &leaseUse{memory: new(uint64), processes: map[int]bool{}}
	}
	leaseOf := en.Attribution.LeaseLookup(len(processes))
	for i := range processes {
		p := &processes[i]
		id, ok := leaseOf(p.PID)
		u := used[id]
		if !ok || u == nil || u.processes[p.PID] {
			continue // A process may be in two of the driver's lists, with the same memory.
		}
		u.processes[p.PID] = true
		switch {
		case p.Memory == nil:
			u.memory = nil
		case u.memory != nil:
			*u.memory += *p.Memory
		}
	}
	return used
}
