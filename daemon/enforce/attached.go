package enforce

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// stopAttempts has the escalation of each lease that got SIGTERM for its GPU memory. The quota measures the grace period.
type stopAttempts map[string]*stopAttempt // nil: none yet

// stopAttempt is an escalation, with the processes whose pidfds have to be closed.
type stopAttempt struct {
	escalation *stop.Escalation
	processes  *stop.Processes // nil: the whole lease is stopped
}

func (s *stopAttempts) put(id string, one *stopAttempt) {
	s.forget(id)
	if *s == nil {
		*s = stopAttempts{}
	}
	(*s)[id] = one
}

// keep forgets the leases that are not in the list.
func (s stopAttempts) keep(ids []string) {
	for id := range s {
		if !slices.Contains(ids, id) {
			s.forget(id)
		}
	}
}

func (s stopAttempts) forget(id string) {
	if one := s[id]; one != nil && one.processes != nil {
		one.processes.Close()
	}
	delete(s, id)
}

// actOnAttached carries out a decision for a lease that is attached in place. Such a lease is never frozen and never stopped
// as a whole: the process that uses most memory gets SIGTERM, then SIGKILL.
func (en *Enforcer) actOnAttached(ctx context.Context, id gpu.UUID, a quota.MemoryAction, l *lease.Lease) error {
	if a.Kind != quota.MemoryStop && a.Kind != quota.MemoryKill {
		return nil // It is never frozen.
	}
	if still, err := en.stillOver(ctx, id, a); err != nil || !still {
		return err
	}
	if a.Kind == quota.MemoryKill {
		s := en.stopAttempts[l.ID]
		if s == nil || !s.escalation.Terminated() {
			return nil // The quota decides again.
		}
		defer en.stopAttempts.forget(l.ID)
		return s.escalation.Kill(ctx)
	}
	largest, pid, err := en.Stopper.LargestProcess(ctx, l, id)
	if err != nil || largest == nil {
		return err
	}
	s := &stopAttempt{processes: largest, escalation: &stop.Escalation{Target: largest, Notify: func(context.Context) {
		en.Table.Notice(l.ID, lease.Notice{Kind: "memory.victim", Text: fmt.Sprintf("pid %d (%s) gets SIGTERM: it uses the most GPU memory", pid, procfs.Name(pid))})
	}}}
	en.stopAttempts.put(l.ID, s)
	return s.escalation.Terminate(ctx)
}
