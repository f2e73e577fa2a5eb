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

// stopping has the ladders of those that were asked to end for their memory, one a lease. The quota measures their grace.
type stopping map[string]*stopped // nil: none yet

// stopped is a ladder, with what has to be let go of.
type stopped struct {
	ladder *stop.Escalation
	held   *stop.Processes // nil: the whole lease is stopped
}

func (s *stopping) put(id string, one *stopped) {
	s.forget(id)
	if *s == nil {
		*s = stopping{}
	}
	(*s)[id] = one
}

// keep forgets the leases that are not in the list.
func (s stopping) keep(ids []string) {
	for id := range s {
		if !slices.Contains(ids, id) {
			s.forget(id)
		}
	}
}

func (s stopping) forget(id string) {
	if one := s[id]; one != nil && one.held != nil {
		one.held.Close()
	}
	delete(s, id)
}

// actOnVisitor carries out what the memory ladder says of a lease that is never frozen and never ended as a whole: the
// process that uses most is asked to end, and killed when it does not.
func (en *Enforcer) actOnVisitor(ctx context.Context, id gpu.UUID, a quota.MemoryAction, l *lease.Lease) error {
	if a.Kind != quota.MemoryStop && a.Kind != quota.MemoryKill {
		return nil // Frozen it is never.
	}
	if still, err := en.stillOver(ctx, id, a); err != nil || !still {
		return err
	}
	if a.Kind == quota.MemoryKill {
		s := en.stopping[l.ID]
		if s == nil || !s.ladder.Terminated() {
			return nil // The quota asks the next one.
		}
		defer en.stopping.forget(l.ID)
		return s.ladder.Kill(ctx)
	}
	largest, pid, err := en.Stopper.LargestProcess(ctx, l, id)
	if err != nil || largest == nil {
		return err
	}
	s := &stopped{held: largest, ladder: &stop.Escalation{Target: largest, Notify: func(context.Context) {
		en.Table.Notice(l.ID, lease.Notice{Kind: "memory.victim", Text: fmt.Sprintf("process %d (%s) is asked to end: it uses most", pid, procfs.Name(pid))})
	}}}
	en.stopping.put(l.ID, s)
	return s.ladder.Terminate(ctx)
}
