package leases

import (
	"context"
	"errors"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

const (
	// keptInterval is how often the cgroups of a kept lease are read without an event.
	keptInterval = 5 * time.Second
	// keptRetry is the pause where a change of them could not be recorded, as while the lease is being stopped.
	keptRetry = time.Second
)

// followKept records when a kept lease has no process and when it has one again, until the lease or ctx ends. It keeps its place in
// between: a cgroup with one of its names is its own.
func (ls *Leases) followKept(ctx context.Context, id string) {
	for {
		l, ok := ls.Table.Get(id)
		if !ok {
			return
		}
		ls.dropForeign(ctx, &l)
		empty := l.Engine.Empty != nil
		turned, err := ls.Attachments.Await(ctx, id, empty, keptInterval)
		switch {
		case ctx.Err() != nil || errors.Is(err, cgroup.ErrNotFound):
			return
		case err != nil:
			ls.Log.Error("cannot watch a lease", "lease", id, "error", err)
			loop.Pause(ctx, keptRetry)
		case turned && !ls.turned(ctx, &l, !empty):
			loop.Pause(ctx, keptRetry)
		case !turned && !empty && !procfs.Alive(l.Process.PID, l.Process.Start):
			ls.nameProcess(ctx, id)
		}
	}
}

// turned records that a kept lease has no process any more, or one again: then its limits are set before it is reported. It is false
// if the lease is being stopped.
func (ls *Leases) turned(ctx context.Context, l *lease.Lease, empty bool) bool {
	kind, text := "lease.empty", "its last process ended: it is kept until it is released"
	var since *time.Time
	if empty {
		now := ls.Now()
		since = &now
	} else {
		kind, text = "lease.resumed", "it has a process again"
		ls.limitAgain(ctx, l)
	}
	if !ls.Table.SetEmpty(l.ID, since) {
		return false
	}
	if !empty {
		ls.nameProcess(ctx, l.ID)
	}
	if err := ls.Table.Record(ctx); err != nil {
		ls.Log.Error("cannot record a lease", "lease", l.ID, "error", err)
	}
	ls.Events.Publish(l.Event(kind, text))
	return true
}

// limitAgain limits the GPU memory of the cgroups that were made again: their limits went with those before them.
func (ls *Leases) limitAgain(ctx context.Context, l *lease.Lease) {
	if err := ls.limitCgroups(ctx, l); err != nil {
		ls.Log.Error("cannot limit the GPU memory of a cgroup that was made again", "lease", l.ID, "error", err)
		ls.Table.Notice(l.ID, lease.Notice{Kind: "memory.not-limited", Text: "its GPU memory is not limited as before: " + err.Error()})
	}
}

// limitCgroups limits the GPU memory of those cgroups of a lease that are there.
func (ls *Leases) limitCgroups(ctx context.Context, l *lease.Lease) error {
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return err
	}
	for _, cg := range l.Cgroups() {
		if !h.Exists(cg) {
			continue
		}
		if err := ls.Memory.Begin(ctx, l, cg); err != nil {
			return err
		}
	}
	return nil
}

// nameProcess gives a lease one of its processes: the one that it is named by has ended, and the lease goes on.
func (ls *Leases) nameProcess(ctx context.Context, id string) {
	if ps, err := ls.Attachments.Members(ctx, id); err == nil && len(ps) > 0 {
		ls.Table.Recovered(id, lease.Process(ps[0]))
	}
}

// dropForeign takes a cgroup from a kept lease that was made again by a user who is neither root, the engine, nor the user of the lease.
// Its last cgroup is not taken: then the lease ends.
func (ls *Leases) dropForeign(ctx context.Context, l *lease.Lease) {
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return
	}
	var left []string
	foreign := ""
	for _, cg := range l.Cgroups() {
		if uid := dirUID(h.Dir(cg)); uid > 0 && uid != l.UID && uid != l.AttachedBy {
			foreign = "cgroup " + cg + " belongs to " + ls.Identities.Names.UserName(uid) + " now"
			continue
		}
		left = append(left, cg)
	}
	switch {
	case foreign == "":
		return
	case len(left) > 0:
		err = ls.SetCgroups(ctx, l, left)
	default:
		err = ls.ReleaseAttached(ctx, l, foreign)
	}
	ls.Log.Warn("a cgroup is of another user, and of its lease no more", "lease", l.ID, "reason", foreign, "error", err)
}

// SetCgroups gives a kept lease that runs other cgroups. If it cannot be done the lease has those of before.
func (ls *Leases) SetCgroups(ctx context.Context, l *lease.Lease, cgroups []string) error {
	ls.inPlaceMu.Lock()
	defer ls.inPlaceMu.Unlock()
	next := l.WithCgroups(cgroups)
	undo := func(err error) error {
		_, back := ls.Attachments.StartScope(ctx, scopeOf(l, cgroup.Process(l.Process), nil))
		return errors.Join(err, back)
	}
	if err := ls.checkUnattributed(&next, next.Process); err != nil {
		return err
	}
	state, err := ls.Attachments.StartScope(ctx, scopeOf(&next, cgroup.Process(l.Process), nil))
	if err != nil {
		return undo(err)
	}
	if err := ls.limitCgroups(ctx, &next); err != nil {
		return undo(err)
	}
	if !ls.Table.SetCgroups(l.ID, cgroups) {
		return undo(errNotRunning)
	}
	ls.Table.SetIsolation(l.ID, ls.inPlaceStatus(&next, state))
	return ls.Table.Record(ctx)
}

var errNotRunning = errors.New("it is being started or stopped: try again")
