package enforce

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// processesMaxAge is how long the last list of processes is used for time slices after the driver stopped answering.
const processesMaxAge = 5 * time.Second

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
	s.chargeDriver(time.Since(began))
	if err != nil {
		return longest
	}
	return s.control.Next(s.now(), device, longest)
}

// list reads the processes of the GPU, decides and acts. The reading is limited by its context, the actions are not.
func (s *sampler) list(read, ctx context.Context, memory gpu.Memory, leases []lease.Lease) {
	s.desired = s.en.State.Desired()
	sample, err := s.readSample(read, memory, s.control.Near(s.device(memory), s.en.SampleInterval()))
	now := s.now()
	if err != nil {
		s.failed(ctx, now, leases)
		return
	}
	s.total = sample.Memory.Used
	s.en.Samples.Put(s.id, sample)
	before, from := s.used, s.recordedAt
	s.used, s.usedAt, s.listedAt = s.en.usesOf(leases, sample.Processes), now, time.Now()
	s.recordedAt = s.listedAt
	for i := range leases {
		s.recordMemory(&leases[i], before, from)
	}
	s.noteExits()
	// The total that was read before the processes: what was allocated in between moves the next one, and they are listed again.
	s.carry(ctx, s.control.Listed(now, memory.Used, s.device(sample.Memory), s.en.accounts(leases, s.used)), leases, s.used)
	s.slice(leases, s.used)
}

// device is the GPU's free memory and its reserve.
func (s *sampler) device(m gpu.Memory) quota.DeviceMemory {
	return quota.DeviceMemory{Free: &m.Free, Reserve: s.en.State.Desired().GPUMemoryReserve(s.id)}
}

// failed continues with last known values: no lease is frozen or stopped on them, and those that are frozen get their breaks.
func (s *sampler) failed(ctx context.Context, now time.Duration, leases []lease.Lease) {
	s.listedAt, s.recordedAt = time.Time{}, time.Time{}
	s.noteExits()
	s.carry(ctx, s.control.Failed(now, s.en.accounts(leases, nil)), leases, nil)
	if now >= s.usedAt+processesMaxAge {
		s.used = nil
	}
	s.slice(leases, s.used)
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
		r = observe.LeaseReading{Memory: u.memory, At: s.listedAt, Failed: u.memory == nil, Processes: []int{}}
		for pid := range u.processes {
			r.Processes = append(r.Processes, pid)
		}
	}
	r.Stage = s.control.Stage(accountOf(l), l.ID)
	s.en.Samples.PutLease(l.ID, s.id, r)
}
