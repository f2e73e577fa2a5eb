package enforce

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// victims are the processes that were asked to end for their memory, one a lease.
type victims struct {
	mu locks.Mutex[locks.Leaf] // guards by
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
func (en *Enforcer) actOnVisitor(ctx context.Context, id gpu.UUID, a quota.MemoryAction, l *lease.Lease) error {
	switch a.Do {
	case quota.MemoryStop:
		if still, err := en.stillOver(ctx, id, a); err != nil || !still {
			return err
		}
		pids, err := en.Stopper.OnGPUs(ctx, l, id)
		if err != nil || len(pids) == 0 {
			return err
		}
		p, who, err := en.Stopper.Seize(pids[0], l.ID)
		if err != nil {
			return nil //nolint:nilerr // It ended, or is no longer the lease's: the ladder looks again.
		}
		defer p.Close()
		en.victims.put(l.ID, who)
		en.Table.Notice(l.ID, lease.Notice{Kind: "memory.victim", Text: fmt.Sprintf("process %d (%s) is asked to end: it uses most", who.PID, procfs.Name(who.PID))})
		if err := p.Signal(unix.SIGTERM); err != nil && !errors.Is(err, procfs.ErrGone) {
			return err
		}
	case quota.MemoryKill:
		if still, err := en.stillOver(ctx, id, a); err != nil || !still {
			return err
		}
		who, ok := en.victims.get(l.ID)
		if !ok {
			return nil
		}
		en.victims.forget(l.ID)
		p, now, err := en.Stopper.Seize(who.PID, l.ID)
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
