package quota

import (
	"cmp"
	"slices"
	"time"
)

// freezeWindow is the time of Freezes.
const freezeWindow = time.Minute

// Freezes is how often and for how long a lease was frozen for the time slices of others in the last minute.
type Freezes struct {
	Count   int
	Frozen  time.Duration // in total
	Longest time.Duration
	// Wait50 and Wait99 are how long a request of the lease waited until it was thawed, if requests arrived at any time of the minute:
	// half of them no longer than Wait50, and 99 of 100 no longer than Wait99.
	Wait50, Wait99 time.Duration
}

// pastFreeze is a time in which a lease was frozen.
type pastFreeze struct{ from, to time.Duration }

// noteFrozen adds a freeze that has ended.
func (u *usage) noteFrozen(from, to time.Duration) {
	u.frozen += to - from
	u.past = append(u.past, pastFreeze{from, to})
	n := 0
	for n < len(u.past) && u.past[n].to <= to-freezeWindow {
		n++
	}
	u.past = append(u.past[:0], u.past[n:]...)
}

// freezes sums up the freezes of the last minute, with the one that lasts.
func (m *member) freezes(now time.Duration) Freezes {
	var out Freezes
	var all []time.Duration
	add := func(x pastFreeze) {
		d := x.to - max(x.from, now-freezeWindow)
		if d <= 0 {
			return
		}
		all = append(all, d)
		out.Count++
		out.Frozen += d
		out.Longest = max(out.Longest, d)
	}
	for _, x := range m.usage.past {
		add(x)
	}
	if m.frozen {
		add(pastFreeze{m.frozenAt, now})
	}
	window := min(now-m.joined, freezeWindow)
	out.Wait50, out.Wait99 = waits(all, window/2), waits(all, window/100)
	return out
}

// waits is the wait that is exceeded during a part of the time: who arrives in a freeze waits for the rest of it.
func waits(freezes []time.Duration, part time.Duration) time.Duration {
	slices.SortFunc(freezes, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	var sum time.Duration // of the n longest
	for i, d := range freezes {
		sum += d
		var next time.Duration
		if i+1 < len(freezes) {
			next = freezes[i+1]
		}
		if sum-time.Duration(i+1)*next >= part {
			return (sum - part) / time.Duration(i+1) // The rest of each of the n longest that is longer than this adds up to the part.
		}
	}
	return 0
}
