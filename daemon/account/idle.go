package account

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
)

// mostGrace is the longest time between the warning that a lease is idle and its end. With a shorter idle.after it is as long
// as that.
const mostGrace = 5 * time.Minute

// idleLeases is what idleLoop knows of idle leases.
type idleLeases struct {
	warned map[idleKey]time.Duration // since boot, when the lease was warned; used by the loop only
}

type idleKey struct {
	id         string
	generation uint64
}

// idleLoop warns leases that are idle for as long as their grant allows, and stops them later if the grant says so. A node that
// only observes does neither.
func (a *Account) idleLoop(ctx context.Context) {
	for loop.Pause(ctx, usage.Window) {
		a.updateIdle(ctx)
	}
}

func (a *Account) updateIdle(ctx context.Context) {
	held := map[string]bool{} // Held may wait for a freeze: it is called without the lock.
	for _, l := range a.Table.Live() {
		held[l.ID] = l.Terms.Spec.Idle != nil && a.Held(l.ID)
	}
	a.updateParts()
	now := a.now()
	a.mu.Lock()
	states := a.meter.UpdateIdle(now, func(id string) bool { return held[id] })
	a.mu.Unlock()
	known := map[idleKey]bool{}
	enforcing := a.State.Desired().Enforcing()
	for _, s := range states {
		key := idleKey{s.ID, s.Generation}
		known[key] = true
		l, ok := a.Table.Get(s.ID)
		if !ok || l.Generation != s.Generation || l.State != lease.Running || l.Terms.Spec.Idle == nil || !enforcing {
			delete(a.idle.warned, key)
			continue
		}
		a.checkIdle(ctx, &l, s.Time, now.Boot)
	}
	for key := range a.idle.warned {
		if !known[key] {
			delete(a.idle.warned, key)
		}
	}
}

// checkIdle does what is due for a lease that was seen idle for so long.
func (a *Account) checkIdle(ctx context.Context, l *lease.Lease, idle, now time.Duration) {
	key, spec := idleKey{l.ID, l.Generation}, l.Terms.Spec.Idle
	after := time.Duration(spec.After)
	if idle < after {
		delete(a.idle.warned, key) // It was busy since: the next time it is warned again.
		return
	}
	grace := min(after, mostGrace)
	warnedAt, warned := a.idle.warned[key]
	stops := spec.Do == api.IdleStop && Stoppable(l.Origin)
	if !warned {
		a.idle.warned[key] = now
		text := fmt.Sprintf("it has not used its GPU for %s (idle.after of its grant)", spec.After)
		if stops {
			text += fmt.Sprintf(": it is stopped in %s unless it does", api.Duration(grace))
		}
		a.Table.Notice(l.ID, lease.Notice{Kind: "lease.idle", Text: text})
		return
	}
	// The lease must have been seen idle for the whole grace, too: what is not measured stops no lease.
	if stops && now-warnedAt >= grace && idle >= after+grace {
		delete(a.idle.warned, key)
		a.Leases.StopInBackground(
			l,
			fmt.Sprintf("it has not used its GPU for %s (idle.do: stop of its grant)", api.Duration((after+grace).Round(time.Second))),
		)
	}
}

// Stoppable reports whether idle.do: stop stops leases of this origin. A login, a unit or a container is only warned: it is not
// there for its GPU alone.
func Stoppable(origin string) bool {
	switch origin {
	case lease.OriginLogin, lease.OriginUnit, lease.OriginContainer:
		return false
	}
	return true
}

// IdleOn returns for how long a lease was seen idle on one GPU. known: that was measured, and lately.
func (a *Account) IdleOn(id string, generation uint64, on gpu.UUID) (idle time.Duration, known bool) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	i, measured, ok := a.meter.IdleOn(id, generation, on, now)
	return i.Time, ok && measured && i.Known
}

// IdleOutside returns for how long the processes of a user on a GPU that are in no lease were seen idle. known is as of IdleOn.
func (a *Account) IdleOutside(user string, on gpu.UUID) (idle time.Duration, known bool) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	i, measured, ok := a.outside.Idle(usage.OutsideKey{User: user, GPU: on}, now)
	return i.Time, ok && measured && i.Known
}

// Fill adds to a lease for how long it was seen idle, if that is measured, and what of the idle of its grant is not enforced.
func (a *Account) Fill(l *api.Lease) {
	if l.State != api.LeaseRunning {
		return
	}
	full, ok := a.Table.Get(l.ID)
	if !ok || full.Generation != l.Generation {
		return
	}
	now := a.now()
	a.mu.Lock()
	s, ok := a.meter.Idle(l.ID, l.Generation, now)
	measured := false
	for _, on := range full.Place.GPUs {
		_, some, _ := a.meter.IdleOn(l.ID, l.Generation, on, now)
		measured = measured || some
	}
	a.mu.Unlock()
	if !ok {
		return
	}
	if s.Known && measured {
		l.IdleSeconds = new(s.Time.Truncate(time.Second).Seconds())
	}
	missing := ""
	if full.Terms.Spec.Idle == nil {
		return
	}
	switch {
	case !a.State.Desired().Enforcing():
		return // That says so for everything.
	case !s.Known:
		missing = "idle: its GPU utilisation is not measured, so it cannot be seen to be idle"
	case full.Terms.Spec.Idle.Do == api.IdleStop && !Stoppable(full.Origin):
		missing = "idle.do: stop: a lease of origin " + full.Origin + " is only warned"
	}
	if missing != "" {
		l.Isolation.NotEnforced = append(l.Isolation.NotEnforced[:len(l.Isolation.NotEnforced):len(l.Isolation.NotEnforced)], missing)
	}
}
