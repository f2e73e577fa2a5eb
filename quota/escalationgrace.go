package quota

import (
	"time"

	"github.com/gpushare/gpushare/internal/owed"
)

// What a grant may still use of its graces belongs to the user whose lease uses most of it, and not to a lease or a process: those may be
// others a moment later, on another GPU.

// shortestGrace is the least time between SIGTERM and SIGKILL, if the spec does not say less: to end on SIGTERM takes a moment.
const shortestGrace = time.Second

// restopOrder is how long after its stop an account comes after the others that are above their limits: programs that start again as
// soon as they were stopped would otherwise keep the others from being stopped.
const restopOrder = time.Minute

func (e *Escalation) owed() *owed.Accounts {
	if e.Owed == nil {
		e.Owed = &owed.Accounts{}
	}
	return e.Owed
}

// clock is a time of the measurements as one of the day, which what is owed is kept in.
func (e *Escalation) clock(now time.Duration) time.Time { return e.Began.Add(now) }

// payerOf is who uses most of an account by the last known uses; of one without leases, the last one.
func (st *account) payerOf(a *MemoryAccount) owed.Payer {
	most := -1
	for i := range a.Leases {
		if v, ok := st.known[a.Leases[i].Lease]; ok && (most < 0 || v > st.known[a.Leases[most].Lease]) {
			most = i
		}
	}
	if most < 0 {
		return st.payer
	}
	return a.Leases[most].payer(a)
}

func (u *MemoryUse) payer(a *MemoryAccount) (p owed.Payer) {
	if u.Payer != p {
		return u.Payer
	}
	p.Grant = a.ID
	return p
}

// begin is the moment at which an account is above its limit.
func (e *Escalation) begin(now time.Duration, a *MemoryAccount, st *account) {
	st.over, st.spent = &now, 0
	if !st.lowered {
		st.spent = e.owed().Free(st.payer, a.Grace, e.clock(now))
		e.owed().Above(st.payer, e.clock(now))
	}
}

// below is the moment at which an account is well below its limit, or has no leases any more.
func (e *Escalation) below(now time.Duration, st *account) {
	if st.over != nil {
		e.owed().SpendFree(st.payer, now-*st.over, st.grace, e.clock(now))
	}
	st.over, st.lowered = nil, false
}

// graceLeft is how long the account has, from when it was above its limit, until a lease of it is stopped.
func (st *account) graceLeft(a *MemoryAccount) time.Duration { return max(0, a.Grace-st.spent) }

// killGrace is how long a lease of the account that is to be stopped now has between SIGTERM and SIGKILL.
func (e *Escalation) killGrace(now time.Duration, a *MemoryAccount) time.Duration {
	used := e.owed().Exit(e.accounts[a.ID].payer, a.Grace, e.clock(now))
	return max(a.Grace-used, min(a.Grace, shortestGrace))
}
