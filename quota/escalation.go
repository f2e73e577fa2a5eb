package quota

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/text"
)

// OverusePolicy is what happens to who uses more GPU memory than granted.
type OverusePolicy string

// The policies, each doing what those before it do.
const (
	OveruseObserve OverusePolicy = "observe" // it is recorded
	OveruseNotify  OverusePolicy = "notify"  // the tenant is told
	OveruseFreeze  OverusePolicy = "freeze"  // after the grace the lease is frozen, time and again for at most MaxFrozen: it stops growing, but gives nothing back
	OveruseKill    OverusePolicy = "kill"    // after the grace it is asked to end, after another grace it is killed
)

// MemoryAccount is one grant on one GPU: its leases share one limit.
type MemoryAccount struct {
	ID     string // unique on the GPU; also what messages call it
	Limit  uint64 // bytes; 0: none
	Policy OverusePolicy
	Grace  time.Duration
	Leases []MemoryUse
}

// MemoryUse is what one lease uses. A lease stays listed until none of its processes and none of its memory is left.
type MemoryUse struct {
	Lease       string
	Used        *uint64 // bytes; nil when the driver does not tell
	NeverFreeze bool    // it must never be frozen
	// InPlace: not the lease is ended but the one process of it that uses most. The lease lives on, and whether that was
	// enough is seen anew.
	InPlace bool
}

// MemoryActionKind is what a memory action is.
type MemoryActionKind string

// The memory actions.
const (
	MemoryNotice MemoryActionKind = "notice" // close to the limit
	MemoryOver   MemoryActionKind = "over"   // above it; In says when something follows
	MemoryClear  MemoryActionKind = "clear"  // well below it again
	MemoryFreeze MemoryActionKind = "freeze" // at most until Until
	MemoryThaw   MemoryActionKind = "thaw"
	MemoryStop   MemoryActionKind = "stop" // thaw, then ask to end (SIGTERM); killed in In
	MemoryKill   MemoryActionKind = "kill" // kill, by the way that fits the lease
	MemoryLeak   MemoryActionKind = "leak" // killed, but its memory did not come back
)

// MemoryAction is one thing to do about GPU memory, with the numbers for the message. Measure again right before a stop
// or a kill, and skip it when the account is no longer above its limit: the ladder asks again.
type MemoryAction struct {
	Kind    MemoryActionKind
	Account string
	Lease   string // freeze, thaw, stop, kill, leak: the one lease it is about
	Used    uint64 // bytes by the whole account, as known
	Limit   uint64
	InPlace bool          // stop, kill: of the lease, its process that uses most
	Notify  bool          // the tenant is to be told, not only the log
	Delay   time.Duration // over, stop: what follows, follows after this; 0: nothing does
	Until   time.Duration // freeze: thawed at the latest then
}

// String is the message, one sentence without its end.
func (a MemoryAction) String() string {
	use := fmt.Sprintf("%s uses %s of %s GPU memory", a.Account, text.Bytes(a.Used), text.Bytes(a.Limit))
	switch a.Kind {
	case MemoryNotice:
		return use + ": close to its limit"
	case MemoryOver:
		if a.Delay > 0 {
			return fmt.Sprintf("%s, more than granted: free some within %v", use, a.Delay)
		}
		return use + ", more than granted"
	case MemoryClear:
		return use + ": below its limit again"
	case MemoryFreeze:
		return fmt.Sprintf("%s: lease %s is frozen for a while", use, a.Lease)
	case MemoryThaw:
		return fmt.Sprintf("lease %s runs again", a.Lease)
	case MemoryStop:
		if a.InPlace {
			return fmt.Sprintf("%s: the process of lease %s that uses most is asked to end and will be killed in %v", use, a.Lease, a.Delay)
		}
		return fmt.Sprintf("%s: lease %s is asked to end and will be killed in %v", use, a.Lease, a.Delay)
	case MemoryKill:
		if a.InPlace {
			return fmt.Sprintf("%s: the process of lease %s did not end and is killed", use, a.Lease)
		}
		return fmt.Sprintf("%s: lease %s did not end and is killed", use, a.Lease)
	case MemoryLeak:
		return fmt.Sprintf("the GPU memory of lease %s did not come back after it was killed", a.Lease)
	}
	return use
}

// Escalation decides about the GPU memory of one GPU. The zero value works; it is not safe for concurrent use.
//
// A step of the ladder is taken only on what the driver tells now: a last known value keeps a warning up, but never
// freezes or ends anybody. Leases are ended one at a time: the next only after the memory of the last came back.
type Escalation struct {
	// MaxFrozen is the longest time frozen at a stretch. 0: 5 s.
	MaxFrozen time.Duration
	// StopInterval is how long after a lease ended for its memory nobody else is asked to. 0: 5 s.
	StopInterval time.Duration
	// LeakAfter is how long after a kill the memory may take to come back. 0: 15 s.
	LeakAfter time.Duration

	accounts map[string]*account
	victim   *victim
	nextStop time.Duration // nobody is asked to end before this
}

// account is what the ladder knows of one account.
type account struct {
	limit     uint64
	known     map[string]uint64 // the last known use by lease
	high      int               // samples in a row at or above 90 %
	notice    bool
	lowSince  *time.Duration // below 85 % since
	over      *time.Duration // above the limit since
	frozen    string         // the lease frozen by the freeze policy
	frozenAt  time.Duration
	freezeOff time.Duration // not frozen again before this
}

// victim is the lease that is being ended.
type victim struct {
	account, lease string
	since          time.Duration // of its stage
	killed         bool
	again          time.Duration // the kill is repeated then
	leaked         bool
	grace          time.Duration
}

// reading is one account as measured now.
type reading struct {
	lastKnown uint64 // with last known values
	current   uint64 // from what the driver tells now
}

// Evaluate takes one measurement of all accounts of the GPU and says what to do, in order.
func (e *Escalation) Evaluate(now time.Duration, list []MemoryAccount) []MemoryAction {
	if e.accounts == nil {
		e.accounts = map[string]*account{}
	}
	list = slices.SortedFunc(slices.Values(list), func(a, b MemoryAccount) int { return cmp.Compare(a.ID, b.ID) })
	var out []MemoryAction
	readings := make([]reading, len(list))
	seen := map[string]bool{}
	for i := range list {
		seen[list[i].ID] = true
		readings[i] = e.read(&list[i])
		out = append(out, e.warn(now, &list[i], readings[i])...)
		out = append(out, e.freeze(now, &list[i], readings[i])...)
	}
	for id := range e.accounts {
		if !seen[id] {
			delete(e.accounts, id)
		}
	}
	out = append(out, e.follow(now, list, readings)...)
	return append(out, e.choose(now, list, readings)...)
}

// read sums one account up and remembers what is known.
func (e *Escalation) read(a *MemoryAccount) reading {
	st := e.accounts[a.ID]
	if st == nil {
		st = &account{limit: a.Limit, known: map[string]uint64{}}
		e.accounts[a.ID] = st
	}
	if a.Limit < st.limit || st.limit == 0 {
		st.over = nil // who was within the old limit gets the full grace for the new one
	}
	st.limit = a.Limit
	var r reading
	known := map[string]uint64{}
	for _, u := range a.Leases {
		v, ok := st.known[u.Lease]
		if u.Used != nil {
			v, ok = *u.Used, true
			r.current += v
		}
		if ok {
			known[u.Lease] = v
			r.lastKnown += v
		}
	}
	st.known = known
	return r
}

// warn tells about being close to the limit, above it, and well below it again.
func (e *Escalation) warn(now time.Duration, a *MemoryAccount, r reading) (out []MemoryAction) {
	st := e.accounts[a.ID]
	add := func(kind MemoryActionKind, in time.Duration) {
		out = append(out, MemoryAction{Kind: kind, Account: a.ID, Used: r.lastKnown, Limit: a.Limit, Notify: a.Policy != OveruseObserve, Delay: in})
	}
	if a.Limit == 0 {
		st.high, st.notice, st.over, st.lowSince = 0, false, nil, nil
		return nil
	}
	percent := func(p uint64) bool { return r.lastKnown >= part(a.Limit, p) }
	if percent(90) {
		st.high++
	} else {
		st.high = 0
	}
	if r.lastKnown > a.Limit && st.over == nil {
		st.over = &now
		st.notice = true
		in := a.Grace
		if a.Policy != OveruseFreeze && a.Policy != OveruseKill {
			in = 0
		}
		add(MemoryOver, in)
	} else if st.high >= 2 && !st.notice {
		st.notice = true
		add(MemoryNotice, 0)
	}
	if st.over != nil && !percent(95) {
		st.over = nil
	}
	switch {
	case percent(85):
		st.lowSince = nil
	case st.notice && st.lowSince == nil:
		st.lowSince = &now
	case st.notice && now-*st.lowSince >= 5*time.Second:
		st.notice, st.lowSince = false, nil
		add(MemoryClear, 0)
	}
	return out
}

// freeze is the freeze policy: frozen while above the limit, but never for long at a stretch.
func (e *Escalation) freeze(now time.Duration, a *MemoryAccount, r reading) []MemoryAction {
	st := e.accounts[a.ID]
	longest := e.MaxFrozen
	if longest == 0 {
		longest = 5 * time.Second
	}
	over := a.Policy == OveruseFreeze && st.over != nil && a.Limit != 0
	if st.frozen != "" {
		if over && now < st.frozenAt+longest && slices.ContainsFunc(a.Leases, func(u MemoryUse) bool { return u.Lease == st.frozen }) {
			return nil
		}
		lease := st.frozen
		st.frozen, st.freezeOff = "", now+max(a.Grace, time.Second)
		return []MemoryAction{{Kind: MemoryThaw, Account: a.ID, Lease: lease, Used: r.lastKnown, Limit: a.Limit}}
	}
	if !over || r.current <= a.Limit || now < *st.over+a.Grace || now < st.freezeOff {
		return nil
	}
	lease, ok := largest(a.Leases, func(u MemoryUse) bool { return !u.NeverFreeze })
	if !ok {
		return nil
	}
	st.frozen, st.frozenAt = lease.Lease, now
	return []MemoryAction{{Kind: MemoryFreeze, Account: a.ID, Lease: lease.Lease, Used: r.lastKnown, Limit: a.Limit, Notify: true, Until: now + longest}}
}

// follow goes on with the lease that is being ended.
func (e *Escalation) follow(now time.Duration, list []MemoryAccount, readings []reading) []MemoryAction {
	v := e.victim
	if v == nil {
		return nil
	}
	i := slices.IndexFunc(list, func(a MemoryAccount) bool { return a.ID == v.account })
	done := func() []MemoryAction {
		interval := e.StopInterval
		if interval == 0 {
			interval = 5 * time.Second
		}
		e.victim, e.nextStop = nil, now+interval
		return nil
	}
	if i < 0 || list[i].Policy != OveruseKill && !v.killed {
		return done()
	}
	k := slices.IndexFunc(list[i].Leases, func(u MemoryUse) bool { return u.Lease == v.lease })
	if k < 0 {
		return done() // its processes and its memory are gone
	}
	act := func(kind MemoryActionKind) []MemoryAction {
		return []MemoryAction{{Kind: kind, Account: v.account, Lease: v.lease, InPlace: list[i].Leases[k].InPlace, Used: readings[i].lastKnown, Limit: list[i].Limit, Notify: kind == MemoryKill}}
	}
	switch {
	case !v.killed && now >= v.since+v.grace:
		if readings[i].current <= list[i].Limit {
			if readings[i].lastKnown <= list[i].Limit {
				return done() // it gave the memory back: it may live
			}
			return nil // not certain: wait until the driver tells
		}
		v.killed, v.since, v.again = true, now, now+5*time.Second
		return act(MemoryKill)
	case v.killed && list[i].Leases[k].InPlace:
		if readings[i].lastKnown <= list[i].Limit || now >= v.since+e.leakAfter() {
			return done() // its next process is asked first, as this one was
		}
		return nil
	case v.killed && !v.leaked && now >= v.since+e.leakAfter():
		v.leaked = true
		return act(MemoryLeak)
	case v.killed && now >= v.again:
		v.again = now + 5*time.Second
		return act(MemoryKill)
	}
	return nil
}

func (e *Escalation) leakAfter() time.Duration {
	if e.LeakAfter == 0 {
		return 15 * time.Second
	}
	return e.LeakAfter
}

// choose picks who is asked to end: the account that is furthest above its limit in proportion, and in it the lease that
// uses most. One at a time.
func (e *Escalation) choose(now time.Duration, list []MemoryAccount, readings []reading) []MemoryAction {
	if e.victim != nil || now < e.nextStop {
		return nil
	}
	best := -1
	for i, a := range list {
		st := e.accounts[a.ID]
		if a.Policy != OveruseKill || a.Limit == 0 || st.over == nil || readings[i].current <= a.Limit || now < *st.over+a.Grace {
			continue
		}
		if best < 0 || float64(readings[i].current)/float64(a.Limit) > float64(readings[best].current)/float64(list[best].Limit) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	a := list[best]
	u, ok := largest(a.Leases, func(MemoryUse) bool { return true })
	if !ok {
		return nil
	}
	e.victim = &victim{account: a.ID, lease: u.Lease, since: now, grace: a.Grace}
	return []MemoryAction{{Kind: MemoryStop, Account: a.ID, Lease: u.Lease, InPlace: u.InPlace, Used: readings[best].lastKnown, Limit: a.Limit, Notify: true, Delay: a.Grace}}
}

// largest is the lease that uses most of what the driver tells now.
func largest(list []MemoryUse, ok func(MemoryUse) bool) (MemoryUse, bool) {
	var out MemoryUse
	for _, u := range list {
		if u.Used == nil || *u.Used == 0 || !ok(u) {
			continue
		}
		if out.Used == nil || *u.Used > *out.Used || *u.Used == *out.Used && u.Lease < out.Lease {
			out = u
		}
	}
	return out, out.Used != nil
}

// part is so many percent of a limit, without overflow.
func part(limit, percent uint64) uint64 { return limit/100*percent + limit%100*percent/100 }
