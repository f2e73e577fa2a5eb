package enforce

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/quota"
)

// memoryFreezeTimeout limits one freeze or thaw because of GPU memory.
const memoryFreezeTimeout = time.Second

// memoryFreezes are the leases that are frozen because of GPU memory. A lease on two GPUs is frozen while one of them
// requires it.
type memoryFreezes struct {
	mu locks.Mutex[locks.Leaf] // guards by
	by map[string]*memoryFreeze
}

// memoryFreeze is one lease, and the GPUs that require its freeze.
type memoryFreeze struct {
	reason cgroup.FreezeReason
	by     []*sampler
}

// freeze freezes a lease for one GPU, at most for a duration: also when the GPU hangs and its loop with it. A lease that got
// SIGTERM and grows nevertheless is frozen as a part of its stop.
func (f *memoryFreezes) freeze(ctx context.Context, en *Enforcer, s *sampler, id string, d time.Duration) error {
	if en.Freezer == nil {
		return nil // Nothing can be frozen here; the status shows it.
	}
	ctx, cancel := context.WithTimeout(ctx, memoryFreezeTimeout)
	defer cancel()
	en.Counters.Freezes.Add(1)
	reason := cgroup.ForGPUMemory
	err := en.Freezer.Freeze(ctx, id, reason, d)
	if errors.Is(err, cgroup.ErrStopping) {
		reason = cgroup.ForStop
		err = en.Freezer.Freeze(ctx, id, reason, d)
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = map[string]*memoryFreeze{}
	}
	if f.by[id] == nil {
		f.by[id] = &memoryFreeze{}
	}
	if one := f.by[id]; !slices.Contains(one.by, s) {
		one.reason, one.by = reason, append(one.by, s)
	}
	return nil
}

// thaw ends the freeze of a lease for one GPU.
func (f *memoryFreezes) thaw(ctx context.Context, en *Enforcer, s *sampler, id string) error {
	f.mu.Lock()
	one := f.by[id]
	if one == nil {
		f.mu.Unlock()
		return nil
	}
	one.by = slices.DeleteFunc(one.by, func(other *sampler) bool { return other == s })
	others := len(one.by)
	if others == 0 {
		delete(f.by, id)
	}
	f.mu.Unlock()
	if others > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), memoryFreezeTimeout)
	defer cancel()
	err := en.Freezer.Thaw(ctx, id, one.reason)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil // Its processes have ended.
	}
	return err
}

// retain forgets the leases that have ended.
func (f *memoryFreezes) retain(ctx context.Context, en *Enforcer, ids []string) {
	if en.Freezer == nil {
		return
	}
	keep := make(map[string]bool, len(ids))
	for _, id := range ids {
		keep[id] = true
	}
	ctx, cancel := context.WithTimeout(ctx, memoryFreezeTimeout)
	defer cancel()
	if err := en.Freezer.Retain(ctx, keep); err != nil {
		en.Log.Error("cannot thaw leases that have ended", "error", err)
	}
}

// freeze freezes the lease of an action. It reports whether all of the lease is frozen; if not, none of it is.
func (s *sampler) freeze(ctx context.Context, a quota.MemoryAction) bool {
	err := s.en.frozen.freeze(ctx, s.en, s, a.Lease, a.Until-s.now())
	if err == nil {
		return true
	}
	s.report("freeze", a.Lease, err)
	s.report("thaw", a.Lease, s.en.frozen.thaw(ctx, s.en, s, a.Lease)) // Some of its processes may be frozen.
	s.control.Escalation.NotFrozen(a.Lease, s.now())
	return false
}
