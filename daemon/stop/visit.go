package stop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
)

// Seize takes hold of a process of the lease, so that what is signalled is that process or none.
func (s *Stopper) Seize(pid int, id string) (*procfs.Pidfd, cgroup.Process, error) {
	start, err := procfs.Start(pid)
	if err != nil {
		return nil, cgroup.Process{}, err
	}
	p, err := procfs.OpenPidfd(pid, start)
	if err != nil {
		return nil, cgroup.Process{}, err
	}
	// Only now that it is held does its cgroup say whose it is.
	if owner, ok := s.Attribution.OwnerOf(pid); !ok || owner != id {
		p.Close()
		return nil, cgroup.Process{}, fmt.Errorf("process %d: %w", pid, cgroup.ErrLeft)
	}
	return p, cgroup.Process{PID: pid, Start: start}, nil
}

// OnGPUs are the pids of the lease's processes on its GPUs, those that use most memory first.
func (s *Stopper) OnGPUs(ctx context.Context, l *lease.Lease, ids ...gpu.UUID) ([]int, error) {
	memory := map[int]uint64{}
	for _, id := range ids {
		processes, err := s.Driver.Processes(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("cannot tell who is on the GPU: %w", err)
		}
		for i := range processes {
			p := &processes[i]
			if owner, ok := s.Attribution.OwnerOf(p.PID); !ok || owner != l.ID {
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

// StopVisitor ends the processes of a visitor that hold its GPUs, and then the lease. Everything else of it goes on: the
// login, the service, the job. Of a container, which runs under a slice of ours, every process ends.
func (s *Stopper) StopVisitor(ctx context.Context, l *lease.Lease, reason string, grace time.Duration) error {
	pids, err := s.toStop(ctx, l)
	if err != nil {
		return fmt.Errorf("cannot stop lease %s: %w", l.ID, err)
	}
	var held []*procfs.Pidfd
	defer func() {
		for _, p := range held {
			_ = p.Close() // Nothing is written through it.
		}
	}()
	for _, pid := range pids {
		p, _, err := s.Seize(pid, l.ID)
		if err != nil {
			continue // It ended, or is no longer the lease's.
		}
		held = append(held, p)
		if err := p.Signal(unix.SIGTERM); err != nil && !errors.Is(err, procfs.ErrGone) {
			return fmt.Errorf("cannot stop lease %s: %w", l.ID, err)
		}
	}
	wait, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, p := range held {
		if p.Wait(wait) == nil {
			continue
		}
		// Never frozen before: that would stop a login or a service of somebody else's.
		if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, procfs.ErrGone) {
			return fmt.Errorf("cannot stop lease %s: %w", l.ID, err)
		}
	}
	dead, cancel := context.WithTimeout(ctx, WallTimeout)
	defer cancel()
	for _, p := range held {
		if err := p.Wait(dead); err != nil {
			return fmt.Errorf("cannot stop lease %s: process %d does not end: %w", l.ID, p.PID(), err)
		}
	}
	if err := s.Table.Ended(ctx, l.ID, reason); err != nil {
		return err
	}
	return s.AwaitGone(ctx, l.ID)
}

func (s *Stopper) toStop(ctx context.Context, l *lease.Lease) ([]int, error) {
	if l.Held != lease.HeldContainer {
		return s.OnGPUs(ctx, l, l.Place.GPUs...)
	}
	members, err := s.Attribution.VisitPort(l).Members(ctx, l.ID)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil, nil
	}
	pids := make([]int, len(members))
	for i, m := range members {
		pids[i] = m.PID
	}
	return pids, err
}
