package stop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/internal/terminal"
	"github.com/gpushare/gpushare/lease"
)

// Stopper stops processes.
type Stopper struct {
	*report.Reporter
	Driver       gpu.Driver
	Table        *lease.Table
	Attribution  attribution
	Freezer      cgroup.ScopeFreezer // freezes only while somebody else could thaw; nil where nothing can be frozen
	LeaseChanges *LeaseChanges
}

// attribution tells whose a process is, and what holds a lease's processes.
type attribution interface {
	LeaseOf(pid int) (id string, ok bool)
	PortOf(l *lease.Lease) cgroup.Port
}

// Lease stops all processes of a lease, and returns when they are gone. Of one whose processes stay where they are it
// stops those that hold its GPUs. Everything else of it goes on: the login, the service, the job. Of a container, which
// runs under a slice of ours, every process ends. notify tells the people of the lease before. The lease itself is still
// to be ended.
func (s *Stopper) Lease(ctx context.Context, l *lease.Lease, grace time.Duration, notify func(context.Context)) error {
	escalation := s.EscalationOf(l)
	if l.InPlace() {
		here := s.processesOf(l, func(ctx context.Context) ([]int, error) { return s.pidsToStop(ctx, l) })
		defer here.Close()
		escalation.Target = here
	}
	escalation.Notify = notify
	if err := escalation.Run(ctx, grace); err != nil {
		return fmt.Errorf("cannot stop lease %s: %w", l.ID, err)
	}
	return nil
}

// EscalationOf is the ladder of a lease that has a scope of its own.
func (s *Stopper) EscalationOf(l *lease.Lease) *Escalation {
	return &Escalation{Target: &scope{port: s.Attribution.PortOf(l), freezer: s.Freezer, id: l.ID, log: s.Log}}
}

// Process ends a process of no lease, and returns when it has ended. What is not that process any more has ended.
func (s *Stopper) Process(ctx context.Context, pid int, start uint64, name, gpu, reason string) error {
	p, err := procfs.OpenPidfd(pid, start)
	if errors.Is(err, procfs.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	one := NewProcesses(p)
	defer one.Close()
	// Only now that it is held does this say whose it is: leases are ended by their own steps.
	if id, pidfds := s.Attribution.LeaseOf(pid); pidfds {
		return fmt.Errorf("cannot stop pid %d (%s): it came into lease %s meanwhile", pid, name, id)
	}
	escalation := Escalation{Target: one, Notify: func(context.Context) {
		text := fmt.Sprintf("process %d (%s) is stopped: %s", pid, name, reason)
		s.Events.Publish(api.Event{Kind: "process.stopping", GPU: gpu, Message: text})
		s.Audit("gpushared", "force", text)
		if uid, err := procfs.UID(pid); err == nil {
			terminal.Notify([]int{pid}, int(uid), "gpushare: "+text)
		}
	}}
	if err := escalation.Run(ctx, StopGrace); err != nil {
		return fmt.Errorf("cannot stop pid %d (%s): %w", pid, name, err)
	}
	return nil
}

// LargestProcess takes hold of the process of a lease that uses most memory of a GPU, to stop that one alone. nil: none is there.
func (s *Stopper) LargestProcess(ctx context.Context, l *lease.Lease, id gpu.UUID) (p *Processes, pid int, err error) {
	pids, err := s.pidsOnGPUs(ctx, l, id)
	if err != nil || len(pids) == 0 {
		return nil, 0, err
	}
	h, err := s.openMember(pids[0], l.ID)
	if err != nil {
		return nil, 0, nil //nolint:nilerr // It ended, or is no longer the lease's: who asks looks again.
	}
	p = s.processesOf(l, nil)
	p.pidfds = []*procfs.Pidfd{h}
	return p, pids[0], nil
}

// processesOf are processes of a lease that stay where they are.
func (s *Stopper) processesOf(l *lease.Lease, pids func(context.Context) ([]int, error)) *Processes {
	p := &Processes{belongs: func(pid int) bool { leaseID, ok := s.Attribution.LeaseOf(pid); return ok && leaseID == l.ID }}
	if pids == nil {
		return p
	}
	p.find = func(ctx context.Context) ([]*procfs.Pidfd, error) {
		list, err := pids(ctx)
		if err != nil {
			return nil, err
		}
		var pidfds []*procfs.Pidfd
		for _, pid := range list {
			if h, err := s.openMember(pid, l.ID); err == nil { // Else it ended, or is no longer the lease's.
				pidfds = append(pidfds, h)
			}
		}
		return pidfds, nil
	}
	return p
}

// openMember takes hold of a process of the lease, so that what is signalled is that process or none.
func (s *Stopper) openMember(pid int, id string) (*procfs.Pidfd, error) {
	start, err := procfs.Start(pid)
	if err != nil {
		return nil, err
	}
	p, err := procfs.OpenPidfd(pid, start)
	if err != nil {
		return nil, err
	}
	// Only now that it is held does its cgroup say whose it is.
	if leaseID, ok := s.Attribution.LeaseOf(pid); !ok || leaseID != id {
		p.Close()
		return nil, fmt.Errorf("process %d: %w", pid, cgroup.ErrWrongCgroup)
	}
	return p, nil
}

// pidsOnGPUs are the pids of the lease's processes on its GPUs, those that use most memory first.
func (s *Stopper) pidsOnGPUs(ctx context.Context, l *lease.Lease, ids ...gpu.UUID) ([]int, error) {
	memory := map[int]uint64{}
	for _, id := range ids {
		processes, err := s.Driver.Processes(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("cannot tell who is on the GPU: %w", err)
		}
		for i := range processes {
			p := &processes[i]
			if leaseID, ok := s.Attribution.LeaseOf(p.PID); !ok || leaseID != l.ID {
				continue
			}
			b := uint64(0)
			if p.Memory != nil {
				b = *p.Memory
			}
			memory[p.PID] = max(memory[p.PID], b)
		}
	}
	pids := make([]int, 0, len(memory))
	for pid := range memory {
		pids = append(pids, pid)
	}
	slices.SortFunc(pids, func(a, b int) int {
		return cmp.Or(cmp.Compare(memory[b], memory[a]), cmp.Compare(a, b))
	})
	return pids, nil
}

func (s *Stopper) pidsToStop(ctx context.Context, l *lease.Lease) ([]int, error) {
	if l.Origin != lease.OriginContainer {
		return s.pidsOnGPUs(ctx, l, l.Place.GPUs...)
	}
	members, err := s.Attribution.PortOf(l).Members(ctx, l.ID)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil, nil
	}
	pids := make([]int, len(members))
	for i, m := range members {
		pids[i] = m.PID
	}
	return pids, err
}
