package quota

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/text"
)

const (
	// growthSlack is how much more a lease above its limit may use than it did, until it is frozen: as much as the device
	// total must move until the processes are listed.
	growthSlack = movedBytes
	// atOncePercent is the use, in percent of the limit, from which a lease gets no time to react before it is frozen.
	atOncePercent = 105
	// reactTime is how long a lease that does not grow runs in its grace until it is frozen, at most half of its grace.
	reactTime = 2 * time.Second
	// breakTime is how long a frozen lease of OveruseKill runs between two freezes, to react.
	breakTime = 500 * time.Millisecond
	// shortBreak is the break while the GPU has less free memory than its reserve, and the shortest of a lease that grows in
	// its breaks.
	shortBreak = 100 * time.Millisecond

	reasonGrows = "it grows"
)

// overrun is one lease of an account that is above its limit.
type overrun struct {
	runs   time.Duration  // since when it runs: since the account is above its limit, or since it was thawed
	broken bool           // it was frozen before
	grew   int            // breaks in which it grew, less those in which it did not: each halves the next one
	low    uint64         // the least that it used since it runs
	frozen *time.Duration // since when; nil: it runs
	retry  time.Duration  // it could not be frozen, and is not tried before this
}

// NotFrozen records that a lease could not be frozen after MemoryFreeze: it runs, and is tried again later.
func (e *Escalation) NotFrozen(lease string, now time.Duration) {
	for _, st := range e.accounts {
		if o := st.leases[lease]; o != nil && o.frozen != nil {
			o.frozen, o.runs, o.low, o.retry = nil, now, st.known[lease], now+e.maxFrozen()
		}
	}
}

func (e *Escalation) maxFrozen() time.Duration {
	if e.MaxFrozen == 0 {
		return 5 * time.Second
	}
	return e.MaxFrozen
}

// runTime is how long a lease above its limit runs until it is frozen, when it neither grows nor frees memory. left is what its account
// has left of its grace.
func (o *overrun) runTime(a *MemoryAccount, left time.Duration, short bool) time.Duration {
	switch {
	case o.broken && short:
		return shortBreak
	case short:
		return 0
	case a.Policy == OveruseKill && o.broken:
		return max(breakTime>>o.grew, shortBreak)
	case a.Policy == OveruseKill:
		return min(reactTime, left/2)
	case o.broken:
		return max(max(a.Grace, time.Second)>>o.grew, shortBreak)
	}
	return left
}

// mostGrown is how often a break is halved.
const mostGrown = 10

// freeze freezes and thaws the leases of one account. Of the leases of one account the largest is frozen, and each that
// grows.
func (e *Escalation) freeze(now time.Duration, device DeviceMemory, a *MemoryAccount, r reading) (out []MemoryAction) {
	st := e.accounts[a.ID]
	if !a.acts() || a.DryRun || st.over == nil || r.lastKnown <= a.Limit || *st.over == now { // Also: its limit was lowered.
		out = st.thawAll(a, r.lastKnown)
	}
	if !a.acts() || st.over == nil {
		st.dry = nil
		return out
	}
	if st.leases == nil {
		st.leases = map[string]*overrun{}
	}
	out = append(out, e.breaks(now, a, r)...)
	if r.current <= a.Limit {
		return out
	}
	uses := slices.SortedFunc(slices.Values(a.Leases), func(x, y MemoryUse) int {
		return cmp.Or(cmp.Compare(use(y), use(x)), cmp.Compare(x.Lease, y.Lease))
	})
	first := true
	for _, u := range uses {
		if u.NeverFreeze || u.InPlace || use(u) == 0 {
			continue
		}
		if reason := e.freezeReason(now, device, a, r, u, first); reason != "" {
			out = append(out, e.freezeOne(now, a, r, u, reason)...)
		}
		first = false
	}
	return out
}

// freezeReason returns why a running lease is to be frozen now; empty: it runs on.
func (e *Escalation) freezeReason(now time.Duration, device DeviceMemory, a *MemoryAccount, r reading, u MemoryUse, largest bool) string {
	st := e.accounts[a.ID]
	o := st.leases[u.Lease]
	if o == nil {
		o = &overrun{runs: now, low: *u.Used}
		st.leases[u.Lease] = o
	}
	if o.frozen != nil || now < o.retry {
		return ""
	}
	if *u.Used+growthSlack <= o.low {
		o.runs, o.low = now, *u.Used // It frees memory: it is not interrupted.
	}
	o.low = min(o.low, *u.Used)
	switch {
	case *u.Used > o.low+growthSlack:
		return reasonGrows
	case !largest, e.victim != nil && e.victim.lease == u.Lease:
		return "" // It has to run to end after SIGTERM.
	case device.short() && now >= o.runs+o.runTime(a, st.graceLeft(a), true):
		return fmt.Sprintf("the GPU has only %s of free memory", text.Bytes(*device.Free))
	case !o.broken && !st.lowered && r.current >= part(a.Limit, atOncePercent):
		return "it is far above its limit"
	case now >= o.runs+o.runTime(a, st.graceLeft(a), false):
		return "it did not free memory"
	}
	return ""
}

func (e *Escalation) freezeOne(now time.Duration, a *MemoryAccount, r reading, u MemoryUse, reason string) []MemoryAction {
	st := e.accounts[a.ID]
	act := MemoryAction{
		Kind: MemoryFreeze, Account: a.ID, Lease: u.Lease, Used: r.lastKnown, Limit: a.Limit, Reason: reason,
		DryRun: a.DryRun, Notify: !a.DryRun && !st.leases[u.Lease].broken, Until: now + e.maxFrozen(),
	}
	if a.DryRun {
		return st.once(act)
	}
	o := st.leases[u.Lease]
	if reason == reasonGrows {
		o.grew = min(o.grew+1, mostGrown)
	} else {
		o.grew = max(o.grew-1, 0)
	}
	o.frozen, o.broken = &now, true
	return []MemoryAction{act}
}

// once returns an action of a dry run the first time since the account is above its limit.
func (st *account) once(act MemoryAction) []MemoryAction {
	if st.dry[act.Kind] {
		return nil
	}
	if st.dry == nil {
		st.dry = map[MemoryActionKind]bool{}
	}
	st.dry[act.Kind] = true
	return []MemoryAction{act}
}

// breaks thaws the leases that were frozen for the longest time, and those that have ended.
func (e *Escalation) breaks(now time.Duration, a *MemoryAccount, r reading) (out []MemoryAction) {
	st := e.accounts[a.ID]
	for _, lease := range slices.Sorted(maps.Keys(st.leases)) {
		o := st.leases[lease]
		i := slices.IndexFunc(a.Leases, func(u MemoryUse) bool { return u.Lease == lease })
		if i >= 0 && (o.frozen == nil || now < *o.frozen+e.maxFrozen()) {
			continue
		}
		out = append(out, st.thaw(a, lease, r.lastKnown)...)
		if i < 0 {
			delete(st.leases, lease)
			continue
		}
		o.runs, o.low = now, st.known[lease]
	}
	return out
}

// thaw returns the action that thaws a lease, if this policy froze it.
func (st *account) thaw(a *MemoryAccount, lease string, used uint64) []MemoryAction {
	o := st.leases[lease]
	if o == nil || o.frozen == nil {
		return nil
	}
	o.frozen = nil
	return []MemoryAction{{Kind: MemoryThaw, Account: a.ID, Lease: lease, Used: used, Limit: a.Limit}}
}

// thawAll thaws the account's leases and forgets that they were above its limit.
func (st *account) thawAll(a *MemoryAccount, used uint64) (out []MemoryAction) {
	for _, lease := range slices.Sorted(maps.Keys(st.leases)) {
		out = append(out, st.thaw(a, lease, used)...)
	}
	st.leases = nil
	return out
}

// short reports once that the GPU has less free memory than its reserve.
func (e *Escalation) short(now time.Duration, device DeviceMemory, list []MemoryAccount, readings []reading) []MemoryAction {
	if device.Free == nil || *device.Free >= device.Reserve+growthSlack {
		e.pressure = e.pressure && device.Free == nil
	}
	if !device.short() || e.pressure {
		return nil
	}
	e.pressure = true
	return []MemoryAction{{Kind: MemoryPressure, Used: *device.Free, Limit: device.Reserve, Candidates: e.candidates(now, list, readings)}}
}

func use(u MemoryUse) uint64 {
	if u.Used == nil {
		return 0
	}
	return *u.Used
}
