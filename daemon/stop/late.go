package stop

import (
	"context"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/lease"
)

// A lease in place does not end with the processes that are killed, and may continue without them. So its condition is removed when
// they have exited, however long after the kill that is.

// watcherInPlace is watcher for processes of a lease in place.
func (s *Stopper) watcherInPlace(l *lease.Lease) watcher {
	w := s.watcher(l)
	w.ended = func() { s.Ended(l) }
	w.gaveUp = func(left []cgroup.Process) {
		if s.late.add(l.ID, left) {
			s.Tasks.Go(func() { s.awaitLate(s.Tasks.Context(), l) })
		}
	}
	return w
}

// lateExits are the processes of leases in place that were killed and did not exit in time.
type lateExits struct {
	mu   locks.Mutex[locks.Leaf] // guards left
	left map[string][]cgroup.Process
}

// add adds processes of a lease. first: no goroutine waits for those of the lease yet.
func (x *lateExits) add(id string, left []cgroup.Process) (first bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.left == nil {
		x.left = map[string][]cgroup.Process{}
	}
	_, waits := x.left[id]
	x.left[id] = append(x.left[id], left...)
	return !waits
}

// next removes one of them. ok is false, and the lease forgotten, when there is none.
func (x *lateExits) next(id string) (p cgroup.Process, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	left := x.left[id]
	if len(left) == 0 {
		delete(x.left, id)
		return p, false
	}
	x.left[id] = left[1:]
	return left[0], true
}

// awaitLate waits until the processes have exited. A lease that was to be stopped then ends.
func (s *Stopper) awaitLate(ctx context.Context, l *lease.Lease) {
	for p, ok := s.late.next(l.ID); ok; p, ok = s.late.next(l.ID) {
		if awaitExit(ctx, p); ctx.Err() != nil {
			return // The daemon ends.
		}
	}
	s.Ended(l)
	if now, ok := s.Table.Get(l.ID); ok && now.State == lease.Ending {
		if err := s.Table.Ended(ctx, l.ID, now.Reason); err != nil {
			s.Log.Warn("cannot end a lease", "lease", l.ID, "error", err)
		}
	}
}

// awaitExit waits until a process has exited, or ctx ends.
func awaitExit(ctx context.Context, p cgroup.Process) {
	h, err := procfs.OpenPidfd(p.PID, p.Start)
	if err != nil {
		return // It has exited.
	}
	defer h.Close()
	_ = h.Wait(ctx) // An error is that of ctx.
}
