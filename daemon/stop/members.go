package stop

import (
	"context"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/lease"
)

// DecideMember is Decide for one process of a lease. A process that was moved into a cgroup of gpushare may be stopped as its lease
// may. Where the lease is in place its processes run where they ran before, and may be those of root or of the system.
func DecideMember(l *lease.Lease, pid int) Decision {
	if d := DecideNamed(l, pid); d != MayStop {
		return d
	}
	if l.InPlace() && l.Origin != lease.OriginContainer {
		return DecidePID(pid)
	}
	return MayStop
}

// Members stops some processes of a lease, and returns when they have exited. The lease continues with its other processes.
// Processes that have exited or left the lease, and those that may not be stopped, are left out; notify is called if any are left.
func (s *Stopper) Members(ctx context.Context, l *lease.Lease, processes []cgroup.Process, notify func(context.Context)) error {
	// Without the conditions of a lease that ends: this one continues. A process that does not exit keeps its GPU memory, which
	// the list of processes shows.
	all := s.watcher(l)
	members := &Processes{watcher: watcher{stopped: all.stopped, aborted: all.aborted, owner: all.owner}, belongs: func(pid int) bool {
		id, ok := s.Attribution.LeaseOf(pid)
		return ok && id == l.ID
	}}
	defer members.Close()
	for _, p := range processes {
		h, err := procfs.OpenPidfd(p.PID, p.Start)
		if err != nil {
			continue // It has exited.
		}
		// The pidfd is open: what is read now is of this process.
		if id, ok := s.Attribution.LeaseOf(p.PID); !ok || id != l.ID || DecideMember(l, p.PID) != MayStop {
			_ = h.Close() // Nothing is written through it.
			continue
		}
		members.pidfds = append(members.pidfds, h)
	}
	if len(members.pidfds) == 0 {
		return nil
	}
	escalation := Escalation{Target: members, Notify: notify}
	if err := escalation.Run(ctx, StopGrace); err != nil {
		return s.failed("cannot stop processes of lease "+l.ID, err)
	}
	return nil
}
