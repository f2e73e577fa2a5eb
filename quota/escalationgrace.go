package quota

import "time"

// graceReturns is how many times as long as a grace was used it takes until it is whole again. A tenant whose program ends, or frees
// its memory for a moment, before each grace is over would otherwise never be stopped.
const graceReturns = 10

// shortestGrace is the least time between SIGTERM and SIGKILL, if the spec does not say less: to end on SIGTERM takes a moment.
const shortestGrace = time.Second

// restopOrder is how long after its stop an account comes after the others that are above their limits: programs that start again as
// soon as they were stopped would otherwise keep the others from being stopped.
const restopOrder = time.Minute

// usedGrace is what an account has used of its grace. It belongs to the account, and not to a lease or a process: those may be others
// a moment later. The zero value is a grace of which nothing was used.
type usedGrace struct {
	amount time.Duration
	at     time.Duration // when it was so much
}

// returned is what is used now, after some of it has returned.
func (u usedGrace) returned(now time.Duration) usedGrace {
	return usedGrace{amount: max(0, u.amount-max(0, now-u.at)/graceReturns), at: now}
}

// spent is what is used now, after it was used for a time that ends now.
func (u usedGrace) spent(now, elapsed, grace time.Duration) usedGrace {
	return usedGrace{amount: min(grace, u.amount+elapsed), at: now}
}

// left is what is left of a grace.
func (u usedGrace) left(grace time.Duration) time.Duration { return max(0, grace-u.amount) }

// graces are what an account has used: to free memory, and between SIGTERM and SIGKILL.
type graces struct {
	limit      uint64 // when the account had no leases any more
	free, kill usedGrace
}

// whole reports whether all of it has returned.
func (g *graces) whole(now time.Duration) bool {
	return g.free.returned(now).amount == 0 && g.kill.returned(now).amount == 0
}

// begin is the moment at which the account is above its limit.
func (st *account) begin(now time.Duration) {
	st.over = &now
	st.spent.free = st.spent.free.returned(now)
}

// below is the moment at which the account is well below its limit.
func (st *account) below(now, grace time.Duration) {
	if st.over != nil {
		st.spent.free = st.spent.free.spent(now, now-*st.over, grace)
	}
	st.over, st.lowered = nil, false
}

// graceLeft is how long the account has, from when it was above its limit, until a lease of it is stopped.
func (st *account) graceLeft(a *MemoryAccount) time.Duration { return st.spent.free.left(a.Grace) }

// killGrace is how long a lease of the account that is to be stopped now has between SIGTERM and SIGKILL.
func (st *account) killGrace(now time.Duration, a *MemoryAccount) time.Duration {
	return max(st.spent.kill.returned(now).left(a.Grace), min(a.Grace, shortestGrace))
}

// keepGraces keeps what an account has used that has no leases on the GPU any more: its next lease may start a moment later. What has
// returned as a whole is forgotten.
func (e *Escalation) keepGraces(now time.Duration, st *account) {
	st.below(now, st.grace)
	st.spent.limit = st.limit
	for id, g := range e.spent {
		if e.accounts[id] == nil && g.whole(now) {
			delete(e.spent, id)
		}
	}
}

// gracesOf is what an account has used that is seen for the first time, or has leases again. For a lower limit it has its full grace.
func (e *Escalation) gracesOf(a *MemoryAccount) *graces {
	g := e.spent[a.ID]
	if g == nil || a.Limit < g.limit {
		g = &graces{}
	}
	if e.spent == nil {
		e.spent = map[string]*graces{}
	}
	e.spent[a.ID] = g
	return g
}
