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
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/terminal"
	"github.com/gpushare/gpushare/lease"
)

// Stopper stops processes.
type Stopper struct {
	*report.Reporter
	Driver       gpu.Driver
	Table        *lease.Table
	Attribution  attribution
	Freezer      freezer // freezes only while gpushare-thaw runs; nil if nothing can be frozen
	LeaseChanges *LeaseChanges
	Tasks        *loop.Group // waits for processes that did not exit in time

	late lateExits
}

// freezer freezes scopes for several reasons.
type freezer interface {
	// Stopping ends all of them, so that SIGTERM reaches the processes.
	Stopping(ctx context.Context, id string) error
	Freeze(ctx context.Context, id string, reason cgroup.FreezeReason, d time.Duration) error
	Thaw(ctx context.Context, id string, reason cgroup.FreezeReason) error
}

// attribution finds the lease of a process, and the port for a lease's processes.
type attribution interface {
	LeaseOf(pid int) (id string, ok bool)
	PortOf(l *lease.Lease) cgroup.Port
}

// Lease stops all processes of a lease, and returns when they have exited. Of a lease in place it stops the processes
// that use its GPUs; the rest of the login, service or job continues. Of a container, which runs under a slice of
// gpushare, it stops every process. notify informs the users of the lease first. The caller then ends the lease itself.
func (s *Stopper) Lease(ctx context.Context, l *lease.Lease, grace time.Duration, notify func(context.Context)) error {
	escalation := s.EscalationOf(l)
	if l.InPlace() {
		here := s.processesOf(l, func(ctx context.Context) ([]int, error) { return s.pidsToStop(ctx, l) })
		defer here.Close()
		if l.Origin == lease.OriginContainer && l.Cgroup != "" {
			here.whole = func(ctx context.Context) error { return killCgroup(ctx, l.Cgroup) }
		}
		escalation.Target = here
	}
	escalation.Notify = notify
	if err := escalation.Run(ctx, grace); err != nil {
		return s.failed("cannot stop lease "+l.ID, err)
	}
	return nil
}

// killCgroup kills all processes of a cgroup.
func killCgroup(ctx context.Context, cg string) error {
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return err
	}
	return h.Kill(ctx, cg)
}

// EscalationOf returns the escalation of a lease that has a scope of gpushare.
func (s *Stopper) EscalationOf(l *lease.Lease) *Escalation {
	return &Escalation{
		Refused: s.refused(l),
		Target:  &scope{port: s.Attribution.PortOf(l), freezer: s.Freezer, id: l.ID, log: s.Log, watcher: s.watcher(l)},
	}
}

// KillScope kills what is left of a lease that ends, and returns when its scope is empty.
func (s *Stopper) KillScope(ctx context.Context, port cgroup.Port, l *lease.Lease) error {
	if err := killScope(ctx, port, l.ID, s.watcher(l)); err != nil {
		return s.failed("cannot empty its cgroup", err)
	}
	return nil
}

// KillUnknown kills a lease whose record was lost, and returns when its scope is empty.
func (s *Stopper) KillUnknown(ctx context.Context, port cgroup.Port, id string) error {
	if err := killScope(ctx, port, id, reporting(s.Reporter)); err != nil {
		return s.failed("cannot kill lease "+id, err)
	}
	return nil
}

// Process stops a process of no lease, and returns when it has exited. If the pid is another process by now, the
// process has exited.
func (s *Stopper) Process(ctx context.Context, pid int, start uint64, name, gpu, reason string) error {
	p, err := procfs.OpenPidfd(pid, start)
	if errors.Is(err, procfs.ErrNoProcess) {
		return nil
	}
	if err != nil {
		return err
	}
	one := NewProcesses(p).Reporting(s.Reporter)
	defer one.Close()
	// The lease is read after the pidfd was opened, so that it is the lease of this process. Leases are ended by steps
	// of their own.
	if id, pidfds := s.Attribution.LeaseOf(pid); pidfds {
		return fmt.Errorf("cannot stop pid %d (%s): it is in lease %s now", pid, name, id)
	}
	escalation := Escalation{Target: one, Notify: func(context.Context) {
		text := fmt.Sprintf("pid %d (%s) is being stopped: %s", pid, name, reason)
		s.Events.Publish(api.Event{Kind: "process.stopping", GPU: gpu, Message: text})
		s.Audit("gpushared", "force", text)
		if uid, err := procfs.UID(pid); err == nil {
			terminal.Notify([]int{pid}, int(uid), "gpushare: "+text)
		}
	}}
	if err := escalation.Run(ctx, StopGrace); err != nil {
		return s.failed(fmt.Sprintf("cannot stop pid %d (%s)", pid, name), err)
	}
	return nil
}

// LargestProcess returns the process of a lease that uses most memory of a GPU, to stop that one alone. nil: there is
// none.
func (s *Stopper) LargestProcess(ctx context.Context, l *lease.Lease, id gpu.UUID) (p *Processes, pid int, err error) {
	pids, err := s.pidsOnGPUs(ctx, l, id)
	if err != nil || len(pids) == 0 {
		return nil, 0, err
	}
	h, err := s.openMember(pids[0], l)
	if err != nil {
		return nil, 0, nil //nolint:nilerr // It exited, or left the lease: the caller tries again.
	}
	p = s.processesOf(l, nil)
	p.pidfds = []*procfs.Pidfd{h}
	return p, pids[0], nil
}

// ProcessesOn returns all processes of a lease on a GPU that may be stopped with it. nil: there is none.
func (s *Stopper) ProcessesOn(ctx context.Context, l *lease.Lease, id gpu.UUID) (p *Processes, pids []int, err error) {
	list, err := s.pidsOnGPUs(ctx, l, id)
	if err != nil {
		return nil, nil, err
	}
	p = s.processesOf(l, nil)
	for _, pid := range list {
		if h, err := s.openMember(pid, l); err == nil { // Else it exited, left the lease, or is of another user.
			p.pidfds, pids = append(p.pidfds, h), append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, nil, nil
	}
	return p, pids, nil
}

// processesOf returns processes of a lease in place.
func (s *Stopper) processesOf(l *lease.Lease, pids func(context.Context) ([]int, error)) *Processes {
	p := &Processes{
		watcher: s.watcherInPlace(l),
		belongs: func(pid int) bool { return s.stopsWith(l, pid) },
	}
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
			if h, err := s.openMember(pid, l); err == nil { // Else it exited, left the lease, or is of another user.
				pidfds = append(pidfds, h)
			}
		}
		return pidfds, nil
	}
	return p
}

// stopsWith reports whether a process is in a lease now, and may be stopped with it.
func (s *Stopper) stopsWith(l *lease.Lease, pid int) bool {
	id, ok := s.Attribution.LeaseOf(pid)
	return ok && id == l.ID && DecideNamed(l, pid) == MayStop
}

// openMember opens a pidfd of a process that stops with the lease, so that a signal reaches this process or none.
func (s *Stopper) openMember(pid int, l *lease.Lease) (*procfs.Pidfd, error) {
	start, err := procfs.Start(pid)
	if err != nil {
		return nil, err
	}
	p, err := procfs.OpenPidfd(pid, start)
	if err != nil {
		return nil, err
	}
	// The lease is read after the pidfd was opened: before, the pid could be reused.
	if !s.stopsWith(l, pid) {
		p.Close()
		return nil, fmt.Errorf("pid %d: %w", pid, cgroup.ErrWrongCgroup)
	}
	return p, nil
}

// pidsOnGPUs returns the pids of the lease's processes on its GPUs, those that use most memory first.
func (s *Stopper) pidsOnGPUs(ctx context.Context, l *lease.Lease, ids ...gpu.UUID) ([]int, error) {
	memory := map[int]uint64{}
	for _, id := range ids {
		processes, err := s.Driver.Processes(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("cannot list the processes of the GPU: %w", err)
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
