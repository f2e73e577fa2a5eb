package quota

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/owed"
)

// stopRetry is the time between two attempts to send a signal that was not reported as sent.
const stopRetry = time.Second

// killRetry is the time between two SIGKILL.
const killRetry = 5 * time.Second

// victim is the lease that is being stopped.
type victim struct {
	account, lease string
	payer          owed.Payer
	grace          time.Duration  // between SIGTERM and SIGKILL
	whole          time.Duration  // what it is a part of
	again          time.Duration  // the next attempt to send the signal that is due
	terminated     *time.Duration // when SIGTERM was sent; nil: it was not
	killed         *time.Duration // when SIGKILL was sent; nil: it was not
	above          time.Duration  // when its account was last above its limit
	exited         bool           // the processes that got SIGTERM have ended; the lease may have others
	tried          bool           // a kill was returned
	leaked         bool
}

// stopEnd is the end of a stop in which a signal was sent.
type stopEnd struct {
	account string
	exited  bool // what got the signal has ended
	at      time.Duration
}

// Terminated records that SIGTERM was sent to a lease after MemoryStop. Without it MemoryKill is never returned.
func (e *Escalation) Terminated(lease string, now time.Duration) {
	if v := e.victim; v != nil && v.lease == lease && v.terminated == nil {
		v.terminated, v.again = &now, now+v.grace
		e.owed().End(v.payer, e.clock(now))
	}
}

// Exited records that the processes of a lease that got SIGTERM have ended. The lease itself may go on with processes that got none, as
// a container that is started again: then what those use is judged for itself.
func (e *Escalation) Exited(lease string) {
	if v := e.victim; v != nil && v.lease == lease && v.terminated != nil {
		v.exited = true
	}
}

// Killed records that SIGKILL was sent to a lease after MemoryKill.
func (e *Escalation) Killed(lease string, now time.Duration) {
	if v := e.victim; v != nil && v.lease == lease && v.terminated != nil && v.killed == nil {
		v.killed, v.again = &now, now+killRetry
	}
}

// follow continues with the lease that is being stopped.
func (e *Escalation) follow(now time.Duration, list []MemoryAccount, readings []reading) []MemoryAction {
	v := e.victim
	if v == nil {
		return nil
	}
	i := slices.IndexFunc(list, func(a MemoryAccount) bool { return a.ID == v.account })
	if i < 0 {
		v.exited = true
		return e.stopped(now)
	}
	if (list[i].Policy != OveruseKill || list[i].DryRun) && v.killed == nil {
		return e.stopped(now)
	}
	k := slices.IndexFunc(list[i].Leases, func(u MemoryUse) bool { return u.Lease == v.lease })
	if k < 0 {
		v.exited = true
		return e.stopped(now) // its processes have ended and its memory is freed
	}
	a, r, u := &list[i], readings[i], &list[i].Leases[k]
	inPlace := u.InPlace
	// The rest of a job is of no use: it ends with those of its processes that have ended.
	ending := u.Job && v.terminated != nil && use(*u) > 0
	if r.lastKnown > a.Limit {
		v.above = now
	}
	switch {
	case inPlace && v.exited:
		return e.stopped(now)
	case v.killed == nil && r.lastKnown <= a.Limit && !ending:
		if v.terminated == nil || now >= *v.terminated+v.grace {
			return e.stopped(now) // it freed the memory: it is not killed
		}
		return nil
	case v.killed == nil && r.current <= a.Limit && !ending:
		return nil // not certain: wait until the driver reports
	case v.terminated == nil && now >= v.again:
		v.again = now + stopRetry
		out := e.stop(now, a, r, a.Leases[k])
		out[len(out)-1].Retry = true
		return out
	case v.killed == nil && now >= v.again:
		v.again = now + stopRetry
		out := []MemoryAction{
			{
				Kind:    MemoryKill,
				Account: a.ID,
				Lease:   v.lease,
				InPlace: inPlace,
				Job:     u.Job,
				Used:    r.lastKnown,
				Limit:   a.Limit,
				Notify:  !v.tried,
				Retry:   v.tried,
			},
		}
		v.tried = true
		return out
	case v.killed == nil:
		return nil
	case inPlace:
		if r.lastKnown <= a.Limit || now >= *v.killed+e.leakAfter() {
			return e.stopped(now) // its next process gets SIGTERM first, like this one
		}
	case !v.leaked && now >= *v.killed+e.leakAfter():
		v.leaked = true
		return []MemoryAction{{Kind: MemoryLeak, Account: a.ID, Lease: v.lease, Used: r.lastKnown, Limit: a.Limit}}
	case now >= v.again:
		v.again = now + killRetry
		return []MemoryAction{{Kind: MemoryKill, Account: a.ID, Lease: v.lease, InPlace: inPlace, Used: r.lastKnown, Limit: a.Limit}}
	}
	return nil
}

// stopped ends the stop of a lease. After a signal no other lease is stopped for StopInterval.
func (e *Escalation) stopped(now time.Duration) []MemoryAction {
	v := e.victim
	e.victim = nil
	if v.terminated == nil {
		return nil
	}
	// What it did not need does not count: a program that ends on SIGTERM has the full grace the next time.
	if used := v.above - *v.terminated; used > 0 {
		e.owed().SpendExit(v.payer, used, v.whole, e.clock(now))
	}
	if e.last.account != v.account || now >= e.last.at+restopOrder {
		e.nextStop = now + e.stopInterval() // Of an account that is stopped again and again the others wait no longer.
	}
	e.last = stopEnd{account: v.account, exited: v.exited, at: now}
	return nil
}

func (e *Escalation) stopInterval() time.Duration {
	if e.StopInterval == 0 {
		return 5 * time.Second
	}
	return e.StopInterval
}

// stopsAgain is the time from which a lease of an account may be stopped. What follows in an account whose lease, or process, has ended
// by a signal does not wait as long as other accounts.
func (e *Escalation) stopsAgain(account string) time.Duration {
	if e.last.exited && e.last.account == account {
		return min(e.nextStop, e.last.at+stopRetry)
	}
	return e.nextStop
}

func (e *Escalation) leakAfter() time.Duration {
	if e.LeakAfter == 0 {
		return 15 * time.Second
	}
	return e.LeakAfter
}

// choose selects the lease to stop: that of the first candidate whose grace is over. One at a time.
func (e *Escalation) choose(now time.Duration, list []MemoryAccount, readings []reading) (out []MemoryAction) {
	candidates := e.candidates(now, list, readings)
	for _, c := range candidates {
		i := slices.IndexFunc(list, func(a MemoryAccount) bool { return a.ID == c.Account })
		a := &list[i]
		if a.Policy != OveruseKill || c.Waits > 0 || c.Lease == "" {
			continue
		}
		if a.DryRun {
			would := MemoryAction{
				Kind:       MemoryStop,
				Account:    a.ID,
				Lease:      c.Lease,
				Used:       c.Used,
				Limit:      c.Limit,
				Delay:      e.killGrace(now, a),
				DryRun:     true,
				Candidates: candidates,
			}
			out = append(out, e.accounts[a.ID].once(would)...)
			continue
		}
		if e.victim != nil || now < e.stopsAgain(a.ID) {
			continue
		}
		u := a.Leases[slices.IndexFunc(a.Leases, func(u MemoryUse) bool { return u.Lease == c.Lease })]
		e.victim = &victim{
			account: a.ID, lease: u.Lease, payer: u.payer(a), grace: e.killGrace(now, a), whole: a.Grace, again: now + stopRetry,
		}
		acts := e.stop(now, a, readings[i], u)
		acts[len(acts)-1].Candidates, acts[len(acts)-1].Notify = candidates, true
		out = append(out, acts...)
	}
	return out
}

// stop thaws a lease, so that SIGTERM reaches it, and requests SIGTERM.
func (e *Escalation) stop(now time.Duration, a *MemoryAccount, r reading, u MemoryUse) []MemoryAction {
	st := e.accounts[a.ID]
	out := st.thaw(a, u.Lease, r.lastKnown)
	if o := st.leases[u.Lease]; o != nil {
		o.runs, o.low = now, use(u)
	}
	return append(out, MemoryAction{
		Kind:    MemoryStop,
		Account: a.ID,
		Lease:   u.Lease,
		InPlace: u.InPlace,
		Job:     u.Job,
		Used:    r.lastKnown,
		Limit:   a.Limit,
		Delay:   e.victim.grace,
	})
}

// candidates are the accounts whose current use is above their limit: those of high priority last, before them the one that was stopped
// last, then the one furthest above its limit in proportion, then the one that grew most.
func (e *Escalation) candidates(now time.Duration, list []MemoryAccount, readings []reading) (out []MemoryCandidate) {
	for i := range list {
		a, st := &list[i], e.accounts[list[i].ID]
		if a.Limit == 0 || st.over == nil || readings[i].current <= a.Limit {
			continue
		}
		u, _ := largest(a.Leases, func(MemoryUse) bool { return true })
		out = append(out, MemoryCandidate{
			Account: a.ID, Lease: u.Lease, Used: readings[i].current, Limit: a.Limit, Growth: st.growth(readings[i].lastKnown),
			HighPriority: a.HighPriority, Waits: max(0, *st.over+st.graceLeft(a)-now),
		})
	}
	slices.SortStableFunc(out, func(x, y MemoryCandidate) int {
		return cmp.Or(
			compareBool(x.HighPriority, y.HighPriority), compareBool(e.stoppedLast(now, x.Account), e.stoppedLast(now, y.Account)),
			cmp.Compare(ratio(y.Used, y.Limit), ratio(x.Used, x.Limit)),
			cmp.Compare(y.Growth, x.Growth),
		)
	})
	return out
}

// stoppedLast reports whether the last lease that got a signal, not long ago, was of this account.
func (e *Escalation) stoppedLast(now time.Duration, account string) bool {
	return e.last.account == account && e.last.at > 0 && now < e.last.at+restopOrder
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
