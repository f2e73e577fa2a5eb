package leases

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/stop"
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
		ls.describeAgain(ctx, &l)
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
		ls.limitAgain(ctx, l.ID)
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
func (ls *Leases) limitAgain(ctx context.Context, id string) {
	ls.inPlaceMu.Lock()
	defer ls.inPlaceMu.Unlock()
	l, ok := ls.runsLocked(id)
	if !ok {
		return
	}
	if err := ls.limitCgroups(ctx, &l); err != nil {
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

// leftCgroups are the cgroups of a lease without those of pods that ended.
func leftCgroups(l *lease.Lease) []string {
	if len(l.Cgroups()) < 2 {
		return l.Cgroups()
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return l.Cgroups()
	}
	return l.CgroupsLeft(h.Exists)
}

// describeAgain records which cgroups of a kept lease are there, and what of it is not enforced, if that is another than before.
func (ls *Leases) describeAgain(ctx context.Context, l *lease.Lease) {
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return
	}
	if ls.Table.SetBegun(l.ID, h.Exists) {
		if err := ls.Table.Record(ctx); err != nil {
			ls.Log.Error("cannot record a lease", "lease", l.ID, "error", err)
		}
		if now, ok := ls.Table.Get(l.ID); ok {
			l = &now
		}
	}
	as := func(l *lease.Lease) (api.IsolationStatus, bool) {
		w := ls.inPlaceStatus(l, cgroup.ScopeState{Path: l.Isolation.Cgroup})
		return w, !slices.Equal(w.NotEnforced, l.Isolation.NotEnforced)
	}
	if _, changed := as(l); !changed || len(l.Cgroups()) < 2 {
		return
	}
	ls.inPlaceMu.Lock()
	defer ls.inPlaceMu.Unlock()
	if now, ok := ls.runsLocked(l.ID); ok {
		if w, changed := as(&now); changed {
			ls.Table.SetIsolation(now.ID, w)
		}
	}
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
	foreign := ""
	own := func(now *lease.Lease) []string {
		foreign = ""
		return slices.DeleteFunc(now.Cgroups(), func(cg string) bool {
			uid := dirUID(h.Dir(cg))
			if uid <= 0 || uid == now.UID || uid == now.AttachedBy {
				return false
			}
			foreign = "cgroup " + cg + " belongs to " + ls.Identities.Names.UserName(uid) + " now"
			return true
		})
	}
	if own(l); foreign == "" {
		return // without the lock, which is held while cgroups are limited
	}
	_, err = ls.SetCgroups(ctx, l.ID, func(now *lease.Lease) ([]string, error) { return own(now), nil })
	if foreign == "" {
		return
	}
	if errors.Is(err, errNoCgroup) {
		err = ls.ReleaseAttached(ctx, l, foreign)
	}
	ls.Log.Warn("a cgroup is of another user, and of its lease no more", "lease", l.ID, "reason", foreign, "error", err)
}

// SetCgroups gives a kept lease that runs the cgroups that next returns for the lease as it is now, and returns the lease. If it cannot
// be done the lease has those of before.
func (ls *Leases) SetCgroups(ctx context.Context, id string, next func(now *lease.Lease) ([]string, error)) (lease.Lease, error) {
	ls.inPlaceMu.Lock()
	defer ls.inPlaceMu.Unlock()
	l, ok := ls.runsLocked(id)
	if !ok {
		return l, errNotRunning
	}
	cgroups, err := next(&l)
	switch {
	case err != nil:
		return l, err
	case len(cgroups) == 0:
		return l, errNoCgroup
	case slices.Equal(cgroups, l.Cgroups()):
		return l, ls.Table.Record(ctx)
	}
	return ls.setCgroupsLocked(ctx, &l, cgroups)
}

func (ls *Leases) setCgroupsLocked(ctx context.Context, l *lease.Lease, cgroups []string) (lease.Lease, error) {
	next := l.WithCgroups(cgroups)
	// It is in the table: its end waits for the lock, and releases the scope that is started here.
	undo := func(err error) (lease.Lease, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stop.IsolationTimeout)
		defer cancel()
		_, back := ls.Attachments.StartScope(ctx, scopeOf(l, cgroup.Process(l.Process), nil))
		ls.endLimits(ctx, l, cgroups, l.Cgroups())
		return *l, errors.Join(err, back)
	}
	if err := ls.checkUnattributed(&next, next.Process); err != nil {
		return *l, err
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
	ls.endLimits(ctx, l, l.Cgroups(), cgroups)
	ls.Table.SetIsolation(l.ID, ls.inPlaceStatus(&next, state))
	if now, ok := ls.Table.Get(l.ID); ok {
		next = now
	}
	return next, ls.Table.Record(ctx)
}

// endLimits removes the limits of those cgroups that are not among those that the lease keeps.
func (ls *Leases) endLimits(ctx context.Context, l *lease.Lease, cgroups, kept []string) {
	without := slices.DeleteFunc(slices.Clone(cgroups), func(cg string) bool { return slices.Contains(kept, cg) })
	if len(without) > 0 {
		of := l.WithCgroups(without)
		of.Isolation.Cgroup = ""
		ls.Memory.End(ctx, &of)
	}
}

// runsLocked returns a kept lease that runs and is not being ended. inPlaceMu is held: one whose end begins afterwards is in the table
// until the lock is free.
func (ls *Leases) runsLocked(id string) (lease.Lease, bool) {
	l, ok := ls.Table.Get(id)
	return l, ok && l.Kept() && l.State == lease.Running
}

var (
	errNotRunning = errors.New("it is being started or stopped: try again")
	errNoCgroup   = errors.New("it would have no cgroup")
)
