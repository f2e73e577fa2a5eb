package quota

import "time"

// freezeWindow is the time of Freezes.
const freezeWindow = time.Minute

// Freezes is how often and for how long a lease was frozen for the time slices of others in the last minute. A request that arrives at
// it waits for up to Longest.
type Freezes struct {
	Count   int
	Frozen  time.Duration // in total
	Longest time.Duration
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
	add := func(x pastFreeze) {
		d := x.to - max(x.from, now-freezeWindow)
		if d <= 0 {
			return
		}
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
	return out
}
