package quota

import "time"

// Due is the time after the last measurement at which another one may lead to an action even if no use changes; ok is false
// when there is none.
func (e *Escalation) Due(list []MemoryAccount) (at time.Duration, ok bool) {
	add := func(t time.Duration) {
		if t > e.evaluated && (!ok || t < at) {
			at, ok = t, true
		}
	}
	if v := e.victim; v != nil {
		add(v.again)
	}
	for i := range list {
		a, st := &list[i], e.accounts[list[i].ID]
		if st != nil && st.lowSince != nil {
			add(*st.lowSince + clearAfter)
		}
		if st == nil || st.over == nil || !a.acts() || a.DryRun {
			continue
		}
		for _, o := range st.leases {
			switch {
			case o.frozen != nil:
				add(*o.frozen + e.maxFrozen())
			default:
				add(max(o.retry, o.runs+o.runTime(a, st.graceLeft(a), e.pressure)))
			}
		}
		if a.Policy == OveruseKill && e.victim == nil {
			add(max(*st.over+st.graceLeft(a), e.stopsAgain(a.ID)))
		}
	}
	return at, ok
}

// Headroom is how much may be allocated on the GPU until a lease may have to be frozen or stopped. grown is by how much the use
// of the GPU has grown since the uses in the list were measured: any account may have taken it.
func (e *Escalation) Headroom(device DeviceMemory, list []MemoryAccount, grown uint64) (headroom Headroom) {
	add := func(limit, used uint64) {
		left := uint64(0)
		if limit > used {
			left = limit - used
		}
		if !headroom.Known || left < headroom.Bytes {
			headroom.Bytes, headroom.Known = left, true
		}
	}
	for i := range list {
		a, st := &list[i], e.accounts[list[i].ID]
		if st == nil || a.Limit == 0 {
			continue
		}
		used := st.used()
		headroom.Close = headroom.Close || used >= part(a.Limit, 90)
		if !a.acts() || a.DryRun {
			continue
		}
		if st.over == nil {
			add(a.Limit, used+grown)
			if device.Free != nil && !device.short() {
				add(*device.Free, device.Reserve)
			}
			continue
		}
		headroom.Over = true
		for lease, o := range st.leases {
			if o.frozen == nil && o.retry == 0 {
				add(o.low+growthSlack, st.known[lease]+grown)
			}
		}
	}
	return headroom
}

// used is the sum of the last known uses.
func (st *account) used() (sum uint64) {
	for _, v := range st.known {
		sum += v
	}
	return sum
}

// The stages of a lease in the escalation, as they are shown.
const (
	StageNotice   = "notice"
	StageOver     = "over"
	StageFrozen   = "frozen"
	StageStopping = "stopping"
)

// Stage is the stage of one lease of an account; empty: none.
func (e *Escalation) Stage(a *MemoryAccount, lease string) string {
	st := e.accounts[a.ID]
	if st == nil || a.Limit == 0 {
		return ""
	}
	used, o := st.used(), st.leases[lease]
	switch {
	case e.victim != nil && e.victim.lease == lease:
		return StageStopping
	case o != nil && o.frozen != nil:
		return StageFrozen
	case used > a.Limit:
		return StageOver
	case used >= part(a.Limit, 90):
		return StageNotice
	}
	return ""
}
