package quota

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/owed"
)

// OverusePolicy is what happens to leases that use more GPU memory than granted.
type OverusePolicy string

// The policies. Each includes those before it.
const (
	OveruseObserve OverusePolicy = "observe" // it is recorded
	OveruseNotify  OverusePolicy = "notify"  // the tenant is notified
	OveruseFreeze  OverusePolicy = "freeze"  // it is frozen, at most MaxFrozen without a break: its use stops growing, no memory is freed
	OveruseKill    OverusePolicy = "kill"    // it is frozen in its grace, then gets SIGTERM, after another grace it is killed
)

// MemoryAccount is one grant on one GPU: its leases share one limit.
type MemoryAccount struct {
	ID           string // unique on the GPU; also its name in messages
	Limit        uint64 // bytes; 0: none
	Policy       OverusePolicy
	Grace        time.Duration
	HighPriority bool // its leases are stopped after those of all others
	DryRun       bool // the node only observes: decisions are returned once, marked, and not followed by others
	// Tightened: a lease of it started under a policy that neither froze nor stopped it. If the account is first seen above its limit,
	// its leases get the full grace, as when a limit is lowered.
	Tightened bool
	Leases    []MemoryUse
}

// acts reports whether the leases of the account are frozen or stopped.
func (a *MemoryAccount) acts() bool {
	return a.Limit != 0 && (a.Policy == OveruseFreeze || a.Policy == OveruseKill)
}

// reportsOnly reports whether nothing but notices follows from a use above the limit.
func (a *MemoryAccount) reportsOnly() bool {
	frozen := func(u MemoryUse) bool { return !u.NeverFreeze && !u.InPlace }
	return a.Policy != OveruseKill && (a.Policy != OveruseFreeze || !slices.ContainsFunc(a.Leases, frozen))
}

// MemoryUse is the use of one lease. A lease is listed until all its processes have ended and all its memory is freed.
type MemoryUse struct {
	Lease       string
	Payer       owed.Payer // who owes what it uses too much; zero: the account itself
	Used        *uint64    // bytes; nil when the driver does not report it
	NeverFreeze bool       // it must never be frozen
	// InPlace: the lease is attached in place. Only its process that uses most is stopped, the lease continues, and the use is
	// evaluated again.
	InPlace bool
	// Job: it is the job of an engine. It is InPlace, and ended: each of its processes on the GPU is stopped, also those that are below
	// the limit when the others have ended.
	Job bool
}

// DeviceMemory is the free memory of the whole GPU. The zero value means that it is not known.
type DeviceMemory struct {
	Free    *uint64 // bytes
	Reserve uint64  // bytes that should stay free: gpu_memory_reserve
}

// short reports whether less is free than the reserve.
func (d DeviceMemory) short() bool { return d.Free != nil && *d.Free < d.Reserve }

// Escalation decides about the GPU memory of one GPU. The zero value works; it is not safe for concurrent use.
//
// A lease above its limit is frozen as soon as it grows, and otherwise after a short time to react, so that it does not take
// the memory of its neighbours while it waits. A frozen process can free nothing, so it is thawed for short breaks; a lease
// that frees memory in a break is left running. With OveruseKill, after the grace it is thawed and gets SIGTERM, and SIGKILL
// only when the caller reported that SIGTERM was sent and another grace is over.
//
// A lease is frozen or stopped only on current values from the driver: a last known value keeps a warning active, but does
// nothing more. Leases are stopped one at a time, the next only after the memory of the last was freed.
//
// A grace that was used is owed and returns slowly: programs that are restarted before each grace is over are stopped too.
type Escalation struct {
	// MaxFrozen is the longest time that a lease is frozen without a break. 0: 5 s.
	MaxFrozen time.Duration
	// StopInterval is the time between the end of a stopped lease and the stop of the next. 0: 5 s.
	StopInterval time.Duration
	// LeakAfter is the time after a kill in which the memory must be freed. 0: 15 s.
	LeakAfter time.Duration
	// Owed is what the payers of all GPUs have used of their graces. nil: one of its own.
	Owed *owed.Accounts
	// Began is the time of the day at which the times of the measurements begin.
	Began time.Time

	accounts  map[string]*account
	evaluated time.Duration // the last measurement
	victim    *victim
	last      stopEnd       // of the last lease that got a signal
	nextStop  time.Duration // no other lease is stopped before this
	pressure  bool          // the GPU has less free than its reserve, and it was reported
}

// account is the state of one account.
type account struct {
	limit    uint64
	grace    time.Duration     // by the policy of the last measurement
	payer    owed.Payer        // who uses most of it
	spent    time.Duration     // what of the grace was used when it was above its limit
	acted    bool              // its leases were frozen or stopped above the limit, by the policy of the last measurement
	known    map[string]uint64 // last known use by lease
	high     int               // samples in a row at or above 90 %
	notice   bool
	lowSince *time.Duration      // below 85 % since
	over     *time.Duration      // above the limit since
	lowered  bool                // it is above its limit because the limit was lowered, or the policy tightened
	leases   map[string]*overrun // its leases while it is above the limit
	dry      map[MemoryActionKind]bool
	history  []pastUse
}

// pastUse is the use of an account at one time.
type pastUse struct {
	at   time.Duration
	used uint64
}

// reading is the measured use of one account.
type reading struct {
	lastKnown uint64 // with last known values
	current   uint64 // only values that the driver reports now
}

// Evaluate takes one measurement of the GPU and of all its accounts, and returns the actions, in order.
func (e *Escalation) Evaluate(now time.Duration, device DeviceMemory, list []MemoryAccount) []MemoryAction {
	if e.accounts == nil {
		e.accounts = map[string]*account{}
	}
	e.evaluated = now
	list = slices.SortedFunc(slices.Values(list), func(a, b MemoryAccount) int { return cmp.Compare(a.ID, b.ID) })
	out := e.removed(now, list)
	readings := make([]reading, len(list))
	order := make([]int, len(list))
	for i := range list {
		order[i] = i
		readings[i] = e.read(&list[i])
		e.accounts[list[i].ID].remember(now, readings[i].lastKnown)
		out = append(out, e.warn(now, &list[i], readings[i])...)
	}
	out = append(out, e.short(now, device, list, readings)...)
	out = append(out, e.follow(now, list, readings)...)
	out = append(out, e.choose(now, list, readings)...)
	// The account that is furthest above its limit is frozen first: it takes most from its neighbours.
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(ratio(readings[b].current, list[b].Limit), ratio(readings[a].current, list[a].Limit))
	})
	for _, i := range order {
		out = append(out, e.freeze(now, device, &list[i], readings[i])...)
	}
	return out
}

// removed forgets the accounts that are not in the list, and thaws their leases: an account has no leases on a GPU any more,
// or its grant was removed.
func (e *Escalation) removed(now time.Duration, list []MemoryAccount) (out []MemoryAction) {
	for id, st := range e.accounts {
		if !slices.ContainsFunc(list, func(a MemoryAccount) bool { return a.ID == id }) {
			out = append(out, st.thawAll(&MemoryAccount{ID: id, Limit: st.limit}, 0)...)
			e.below(now, st)
			delete(e.accounts, id)
		}
	}
	slices.SortFunc(out, func(a, b MemoryAction) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Lease, b.Lease))
	})
	return out
}

// growthWindow is the time over which the growth of an account is reported and compared.
const growthWindow = 30 * time.Second

// remember keeps one use a second, for the growth.
func (st *account) remember(now time.Duration, used uint64) {
	if n := len(st.history); n != 0 && now < st.history[n-1].at+time.Second {
		return
	}
	st.history = append(st.history, pastUse{now, used})
	for len(st.history) > 1 && st.history[1].at <= now-growthWindow {
		st.history = st.history[1:]
	}
}

// growth is how much more the account uses than growthWindow before.
func (st *account) growth(used uint64) int64 {
	if len(st.history) == 0 {
		return 0
	}
	return int64(used) - int64(st.history[0].used)
}

// read adds up one account and stores the known values.
func (e *Escalation) read(a *MemoryAccount) reading {
	st := e.accounts[a.ID]
	if st == nil {
		st = &account{limit: a.Limit, acted: a.acts() && !a.Tightened, known: map[string]uint64{}}
		e.accounts[a.ID] = st
	}
	if a.Limit < st.limit || st.limit == 0 || a.acts() && !st.acted {
		// Leases within the old limit, or under the old policy, get the full grace for the new one.
		st.over, st.lowered = nil, true
	}
	st.limit, st.grace, st.acted = a.Limit, a.Grace, a.acts()
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
	st.payer = st.payerOf(a)
	return r
}

// clearAfter is how long an account must be below 85 % until its notice ends.
const clearAfter = 5 * time.Second

// warn returns the notices: close to the limit, above it, and well below it again.
func (e *Escalation) warn(now time.Duration, a *MemoryAccount, r reading) (out []MemoryAction) {
	st := e.accounts[a.ID]
	add := func(kind MemoryActionKind, in time.Duration) {
		out = append(out, MemoryAction{
			Kind:    kind,
			Account: a.ID,
			Used:    r.lastKnown,
			Limit:   a.Limit,
			Notify:  a.Policy != OveruseObserve && !a.DryRun,
			Report:  a.reportsOnly(),
			Delay:   in,
		})
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
		e.begin(now, a, st)
		st.notice = true
		in := st.graceLeft(a)
		if !a.acts() || a.DryRun {
			in = 0
		}
		add(MemoryOver, in)
	} else if st.high >= 2 && !st.notice {
		st.notice = true
		add(MemoryNotice, 0)
	}
	if !percent(95) {
		e.below(now, st)
	}
	switch {
	case percent(85):
		st.lowSince = nil
	case st.notice && st.lowSince == nil:
		st.lowSince = &now
	case st.notice && now-*st.lowSince >= clearAfter:
		st.notice, st.lowSince = false, nil
		add(MemoryClear, 0)
	}
	return out
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
