package quota

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/text"
)

// OverusePolicy is what happens to leases that use more GPU memory than granted.
type OverusePolicy string

// The policies. Each includes those before it.
const (
	OveruseObserve OverusePolicy = "observe" // it is recorded
	OveruseNotify  OverusePolicy = "notify"  // the tenant is notified
	OveruseFreeze  OverusePolicy = "freeze"  // after the grace the lease is frozen repeatedly for at most MaxFrozen: its use stops growing, but no memory is freed
	OveruseKill    OverusePolicy = "kill"    // after the grace it gets SIGTERM, after another grace it is killed
)

// MemoryAccount is one grant on one GPU: its leases share one limit.
type MemoryAccount struct {
	ID     string // unique on the GPU; also its name in messages
	Limit  uint64 // bytes; 0: none
	Policy OverusePolicy
	Grace  time.Duration
	Leases []MemoryUse
}

// MemoryUse is the use of one lease. A lease is listed until all its processes have ended and all its memory is freed.
type MemoryUse struct {
	Lease       string
	Used        *uint64 // bytes; nil when the driver does not report it
	NeverFreeze bool    // it must never be frozen
	// InPlace: the lease is attached in place. Only its process that uses most is stopped, the lease continues, and the use is
	// evaluated again.
	InPlace bool
}

// MemoryActionKind is the kind of a memory action.
type MemoryActionKind string

// The memory actions.
const (
	MemoryNotice MemoryActionKind = "notice" // close to the limit
	MemoryOver   MemoryActionKind = "over"   // above it; Delay is the time until the next stage
	MemoryClear  MemoryActionKind = "clear"  // well below it again
	MemoryFreeze MemoryActionKind = "freeze" // at most until Until
	MemoryThaw   MemoryActionKind = "thaw"
	MemoryStop   MemoryActionKind = "stop" // thaw, then SIGTERM; killed after Delay
	MemoryKill   MemoryActionKind = "kill" // kill, in the way that fits the lease
	MemoryLeak   MemoryActionKind = "leak" // killed, but its memory was not freed
)

// MemoryAction is one action about GPU memory, with the numbers for its message. Measure again immediately before a stop or
// a kill, and skip it when the account is no longer above its limit: Evaluate returns it again when needed.
type MemoryAction struct {
	Kind    MemoryActionKind
	Account string
	Lease   string // freeze, thaw, stop, kill, leak: the lease
	Used    uint64 // bytes of the whole account, with last known values
	Limit   uint64
	InPlace bool          // stop, kill: only the process of the lease that uses most
	Notify  bool          // notify the tenant, not only the log
	Delay   time.Duration // over, stop: time until the next stage; 0: there is none
	Until   time.Duration // freeze: the deadline of the thaw
}

// String is the message, one sentence without a full stop.
func (a MemoryAction) String() string {
	use := fmt.Sprintf("%s uses %s of %s GPU memory", a.Account, text.Bytes(a.Used), text.Bytes(a.Limit))
	switch a.Kind {
	case MemoryNotice:
		return use + ": close to its limit"
	case MemoryOver:
		if a.Delay > 0 {
			return fmt.Sprintf("%s, more than granted: free memory within %v", use, a.Delay)
		}
		return use + ", more than granted"
	case MemoryClear:
		return use + ": below its limit again"
	case MemoryFreeze:
		return fmt.Sprintf("%s: lease %s is frozen temporarily", use, a.Lease)
	case MemoryThaw:
		return fmt.Sprintf("lease %s is thawed", a.Lease)
	case MemoryStop:
		if a.InPlace {
			return fmt.Sprintf("%s: the process of lease %s that uses most gets SIGTERM and is killed after %v", use, a.Lease, a.Delay)
		}
		return fmt.Sprintf("%s: lease %s gets SIGTERM and is killed after %v", use, a.Lease, a.Delay)
	case MemoryKill:
		if a.InPlace {
			return fmt.Sprintf("%s: the process of lease %s did not end and is killed", use, a.Lease)
		}
		return fmt.Sprintf("%s: lease %s did not end and is killed", use, a.Lease)
	case MemoryLeak:
		return fmt.Sprintf("the GPU memory of lease %s was not freed after it was killed", a.Lease)
	}
	return use
}

// Escalation decides about the GPU memory of one GPU. The zero value works; it is not safe for concurrent use.
//
// A lease is frozen or stopped only on current values from the driver: a last known value keeps a warning active, but does
// nothing more. Leases are stopped one at a time, the next only after the memory of the last was freed.
type Escalation struct {
	// MaxFrozen is the longest time that a lease is frozen without a break. 0: 5 s.
	MaxFrozen time.Duration
	// StopInterval is the time between the end of a stopped lease and the stop of the next. 0: 5 s.
	StopInterval time.Duration
	// LeakAfter is the time after a kill in which the memory must be freed. 0: 15 s.
	LeakAfter time.Duration

	accounts map[string]*account
	victim   *victim
	nextStop time.Duration // no lease is stopped before this
}

// account is the state of one account.
type account struct {
	limit     uint64
	known     map[string]uint64 // last known use by lease
	high      int               // samples in a row at or above 90 %
	notice    bool
	lowSince  *time.Duration // below 85 % since
	over      *time.Duration // above the limit since
	frozen    string         // the lease frozen by the freeze policy
	frozenAt  time.Duration
	freezeOff time.Duration // not frozen again before this
}

// victim is the lease that is being stopped.
type victim struct {
	account, lease string
	since          time.Duration // start of its stage
	killed         bool
	again          time.Duration // the kill is repeated then
	leaked         bool
	grace          time.Duration
}

// reading is the measured use of one account.
type reading struct {
	lastKnown uint64 // with last known values
	current   uint64 // only values that the driver reports now
}

// Evaluate takes one measurement of all accounts of the GPU and returns the actions, in order.
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

// read adds up one account and stores the known values.
func (e *Escalation) read(a *MemoryAccount) reading {
	st := e.accounts[a.ID]
	if st == nil {
		st = &account{limit: a.Limit, known: map[string]uint64{}}
		e.accounts[a.ID] = st
	}
	if a.Limit < st.limit || st.limit == 0 {
		st.over = nil // leases within the old limit get the full grace for the new one
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

// warn returns the notices: close to the limit, above it, and well below it again.
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

// freeze is the freeze policy: frozen while above the limit, with breaks after MaxFrozen.
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

// follow continues with the lease that is being stopped.
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
		return done() // its processes have ended and its memory is freed
	}
	act := func(kind MemoryActionKind) []MemoryAction {
		return []MemoryAction{{Kind: kind, Account: v.account, Lease: v.lease, InPlace: list[i].Leases[k].InPlace, Used: readings[i].lastKnown, Limit: list[i].Limit, Notify: kind == MemoryKill}}
	}
	switch {
	case !v.killed && now >= v.since+v.grace:
		if readings[i].current <= list[i].Limit {
			if readings[i].lastKnown <= list[i].Limit {
				return done() // it freed the memory: it is not killed
			}
			return nil // not certain: wait until the driver reports
		}
		v.killed, v.since, v.again = true, now, now+5*time.Second
		return act(MemoryKill)
	case v.killed && list[i].Leases[k].InPlace:
		if readings[i].lastKnown <= list[i].Limit || now >= v.since+e.leakAfter() {
			return done() // its next process gets SIGTERM first, like this one
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

// choose selects the lease to stop: in the account that is furthest above its limit in proportion, the lease that uses most.
// One at a time.
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

// largest is the lease that uses most by the driver's current values.
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

// part is a percentage of a limit, without overflow.
func part(limit, percent uint64) uint64 { return limit/100*percent + limit%100*percent/100 }
