package enforce

import (
	"context"

	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// act carries out one decision. Signals are sent by a goroutine of their own, which measures the use again before.
func (s *sampler) act(ctx context.Context, a quota.MemoryAction, leases []lease.Lease) {
	s.log(a)
	if a.DryRun {
		return
	}
	// The users are informed before a signal, and of a freeze once it is effective. Of another attempt they are not.
	after := a.Kind == quota.MemoryFreeze
	if !a.Retry && !after {
		s.announce(a, leases)
	}
	if s.carryOut(ctx, a) && !a.Retry && after {
		s.announce(a, leases)
	}
}

// carryOut does what an action says. ok is false when a lease could not be frozen.
func (s *sampler) carryOut(ctx context.Context, a quota.MemoryAction) (ok bool) {
	en := s.en
	switch a.Kind {
	case quota.MemoryFreeze:
		return s.freeze(ctx, a)
	case quota.MemoryThaw:
		s.report("thaw", a.Lease, en.frozen.thaw(ctx, en, s, a.Lease))
	case quota.MemoryStop, quota.MemoryKill:
		s.signal(a)
	case quota.MemoryNotice, quota.MemoryOver, quota.MemoryClear, quota.MemoryLeak, quota.MemoryPressure:
	}
	return true
}
