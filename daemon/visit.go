package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// visitPort is what holds a lease whose processes stay where they are: their cgroup, or the tree under one process.
func (d *Attribution) visitPort(l *lease.Lease) cgroup.Port {
	if l.Cgroup != "" {
		return d.visitors
	}
	return d.follow
}

// visit takes processes into a lease without moving them.
func (d *Leases) visit(ctx context.Context, l *lease.Lease, p lease.Process) (lease.Inside, error) {
	var inside lease.Inside
	var err error
	if inside.Environment, inside.Unset, err = d.policy.environment(ctx, l); err != nil {
		return lease.Inside{}, err
	}
	d.visiting.Lock()
	defer d.visiting.Unlock()
	if l.Held == lease.HeldAttached {
		if err := d.stillFree(l, p); err != nil {
			return lease.Inside{}, err
		}
	}
	state, err := d.attribution.visitPort(l).StartScope(ctx, scopeOf(l, cgroup.Process(p), nil))
	if err != nil {
		return lease.Inside{}, err
	}
	// What stands on logins lets the user to the GPU from now on. Where it cannot be changed, a condition says so too.
	visitor := *l
	visitor.Process = p
	if err := d.policy.regard(&visitor, ""); err != nil {
		inside.Warnings = append(inside.Warnings, "its GPU may not open: "+err.Error())
	}
	inside.Status = d.visitStatus(&visitor, state)
	return inside, nil
}

// leave forgets a visitor's processes. They go on as they were.
func (d *Leases) leave(id string) {
	d.visitors.Release(id)
	d.follow.Release(id)
}

// adoptVisitor finds one visitor's processes again.
func (d *Leases) adoptVisitor(ctx context.Context, l *lease.Lease) bool {
	state, err := d.attribution.visitPort(l).Adopt(ctx, scopeOf(l, cgroup.Process(l.Process), nil))
	if err != nil {
		if !errors.Is(err, cgroup.ErrNotFound) {
			d.Log.Warn("cannot find a lease again", "lease", l.ID, "held", l.Held, "error", err)
		}
		return false
	}
	d.table.SetWalls(l.ID, d.visitStatus(l, state))
	return true
}

// visitStatus says what does not hold where a lease's processes stay where they are.
func (d *Leases) visitStatus(l *lease.Lease, s cgroup.ScopeState) api.WallsStatus {
	w := api.WallsStatus{Cgroup: s.Path, Unit: l.Unit}
	info := d.port.Info()
	if !d.state.Desired().enforcing() {
		w.Missing = append(w.Missing, "everything: the spec says enforce: observe")
	}
	if l.Held == lease.HeldContainer {
		// It is under the grant's slice, so what holds there holds for it.
		w.Devices = info.Devices
		if info.Devices {
			w.Missing = append(w.Missing, "device rules of this lease alone: it can open every GPU of its grant")
		}
	}
	if d.policy.guarded(l) {
		w.Devices = true
		if l.Held != lease.HeldUnit {
			w.Missing = append(w.Missing, "device rules of this lease alone: every login of "+l.User+" can open its GPU")
		}
	}
	if !w.Devices {
		w.Missing = append(w.Missing, "device rules: "+stays(l)+", so it can open every GPU that it could before")
	}
	if l.Held == lease.HeldContainer {
		w.Missing = append(w.Missing, missingLimits(info)...)
	} else {
		w.Missing = append(w.Missing, "cpu, memory, tasks and io limits: they are those of where it runs, not the tenant's")
	}
	switch l.Terms.Kind() {
	case api.ModeTimeslice:
		w.Missing = append(w.Missing, "its time share: it is never frozen, so it runs whenever it likes")
	case api.ModeMPS:
		w.Missing = append(w.Missing, "its MPS share: it holds only for processes that were started with the environment of the lease")
	}
	return w
}

// seize takes hold of a process of the lease, so that what is signalled is that process or none.
func (d *Stopper) seize(pid int, id string) (*procfs.Pidfd, cgroup.Process, error) {
	start, err := procfs.Start(pid)
	if err != nil {
		return nil, cgroup.Process{}, err
	}
	p, err := procfs.OpenPidfd(pid, start)
	if err != nil {
		return nil, cgroup.Process{}, err
	}
	// Only now that it is held does its cgroup say whose it is.
	if owner, ok := d.attribution.ownerOf(pid); !ok || owner != id {
		p.Close()
		return nil, cgroup.Process{}, fmt.Errorf("process %d: %w", pid, cgroup.ErrLeft)
	}
	return p, cgroup.Process{PID: pid, Start: start}, nil
}

// onGPUs are the pids of the lease's processes on its GPUs, those that use most memory first.
func (d *Stopper) onGPUs(ctx context.Context, l *lease.Lease, ids ...gpu.UUID) ([]int, error) {
	memory := map[int]uint64{}
	for _, id := range ids {
		processes, err := d.driver.Processes(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("cannot tell who is on the GPU: %w", err)
		}
		for i := range processes {
			p := &processes[i]
			if owner, ok := d.attribution.ownerOf(p.PID); !ok || owner != l.ID {
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

// stopVisitor ends the processes of a visitor that hold its GPUs, and then the lease. Everything else of it goes on: the
// login, the service, the job. Of a container, which runs under a slice of ours, every process ends.
func (d *Stopper) stopVisitor(ctx context.Context, l *lease.Lease, reason string, grace time.Duration) error {
	pids, err := d.toStop(ctx, l)
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
		p, _, err := d.seize(pid, l.ID)
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
	dead, cancel := context.WithTimeout(ctx, wallTimeout)
	defer cancel()
	for _, p := range held {
		if err := p.Wait(dead); err != nil {
			return fmt.Errorf("cannot stop lease %s: process %d does not end: %w", l.ID, p.PID(), err)
		}
	}
	if err := d.table.Ended(ctx, l.ID, reason); err != nil {
		return err
	}
	return d.awaitGone(ctx, l.ID)
}

func (d *Stopper) toStop(ctx context.Context, l *lease.Lease) ([]int, error) {
	if l.Held != lease.HeldContainer {
		return d.onGPUs(ctx, l, l.Place.GPUs...)
	}
	members, err := d.attribution.visitPort(l).Members(ctx, l.ID)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil, nil
	}
	pids := make([]int, len(members))
	for i, m := range members {
		pids[i] = m.PID
	}
	return pids, err
}

// victims are the processes that were asked to end for their memory, one a lease.
type victims struct {
	mu sync.Mutex // guards by
	by map[string]cgroup.Process
}

func (v *victims) put(id string, p cgroup.Process) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.by == nil {
		v.by = map[string]cgroup.Process{}
	}
	v.by[id] = p
}

func (v *victims) get(id string) (cgroup.Process, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, ok := v.by[id]
	return p, ok
}

// keep forgets the leases that are not in the list.
func (v *victims) keep(ids []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id := range v.by {
		if !slices.Contains(ids, id) {
			delete(v.by, id)
		}
	}
}

func (v *victims) forget(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.by, id)
}

// actOnVisitor carries out what the memory ladder says of a lease that is never frozen and never ended as a whole: the
// process that uses most is asked to end, and killed when it does not.
func (d *Enforcer) actOnVisitor(ctx context.Context, id gpu.UUID, a quota.MemoryAction, l *lease.Lease) error {
	switch a.Do {
	case quota.MemoryStop:
		if still, err := d.stillOver(ctx, id, a); err != nil || !still {
			return err
		}
		pids, err := d.stopper.onGPUs(ctx, l, id)
		if err != nil || len(pids) == 0 {
			return err
		}
		p, who, err := d.stopper.seize(pids[0], l.ID)
		if err != nil {
			return nil //nolint:nilerr // It ended, or is no longer the lease's: the ladder looks again.
		}
		defer p.Close()
		d.victims.put(l.ID, who)
		d.table.Notice(l.ID, lease.Notice{Kind: "memory.victim", Text: fmt.Sprintf("process %d (%s) is asked to end: it uses most", who.PID, procfs.Name(who.PID))})
		if err := p.Signal(unix.SIGTERM); err != nil && !errors.Is(err, procfs.ErrGone) {
			return err
		}
	case quota.MemoryKill:
		if still, err := d.stillOver(ctx, id, a); err != nil || !still {
			return err
		}
		who, ok := d.victims.get(l.ID)
		if !ok {
			return nil
		}
		d.victims.forget(l.ID)
		p, now, err := d.stopper.seize(who.PID, l.ID)
		if err != nil || now != who {
			return nil //nolint:nilerr // It ended: whether that was enough, the ladder sees.
		}
		defer p.Close()
		if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, procfs.ErrGone) {
			return err
		}
	case quota.MemoryFreeze, quota.MemoryThaw, quota.MemoryNotice, quota.MemoryOver, quota.MemoryClear, quota.MemoryLeak:
		// Frozen it is never.
	}
	return nil
}
