package quota

import "time"

// DriverLoad is the driver's time a second for readings of the GPU over the last minute, and whether that exceeds the
// budget. Before a minute has passed it never does: what was saved before may be spent at once.
func (s *Sampling) DriverLoad(now time.Duration) (perSecond time.Duration, exceeded bool) {
	perSecond = s.window.perSecond(now)
	return perSecond, perSecond > DriverBudget && s.window.full(now)
}

// budgetWindow adds up durations over the last minute, in parts of a second.
type budgetWindow struct {
	began   time.Duration
	started bool
	parts   []spentPart
}

type spentPart struct{ at, spent time.Duration }

const budgetWindowLength = time.Minute

func (w *budgetWindow) add(now, spent time.Duration) {
	if !w.started {
		w.began, w.started = now, true
	}
	if n := len(w.parts); n != 0 && now < w.parts[n-1].at+time.Second {
		w.parts[n-1].spent += spent
	} else {
		w.parts = append(w.parts, spentPart{now, spent})
	}
	for len(w.parts) != 0 && w.parts[0].at < now-budgetWindowLength {
		w.parts = w.parts[1:]
	}
}

// full reports whether readings were observed for as long as the window.
func (w *budgetWindow) full(now time.Duration) bool {
	return w.started && now-w.began >= budgetWindowLength
}

func (w *budgetWindow) perSecond(now time.Duration) time.Duration {
	var sum time.Duration
	for _, p := range w.parts {
		sum += p.spent
	}
	// At least ten seconds: the first list of a new lease is no load.
	over := max(min(now-w.began, budgetWindowLength), 10*time.Second)
	return time.Duration(float64(sum) / over.Seconds())
}
