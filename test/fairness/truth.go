package fairness

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/quota"
)

// Said is what the scheduler says of the share of a load at a moment, and what is true of the ten seconds before.
type Said struct {
	At      time.Duration
	Load    int
	Verdict quota.Verdict
	Had     float64 // 0…1, of the time of the virtual hardware
	Due     float64 // its share, or what it would use alone if that is less
}

func (s Said) String() string {
	return fmt.Sprintf(
		"at %v load %d has %.1f of %.1f %%, and is shown as %s within %.1f points (%.1f of %.1f %%: %s)",
		s.At,
		s.Load,
		100*s.Had,
		100*s.Due,
		s.Verdict.State,
		100*s.Verdict.Within,
		100*s.Verdict.Got,
		100*s.Verdict.Due,
		s.Verdict.Reason,
	)
}

// claims reports whether a share is said to be met.
func (s *Said) claims() bool { return s.Verdict.State == quota.Met || s.Verdict.State == quota.Less }

// lacks reports whether the window lacks more than is said of how exact shares are.
func (s *Said) lacks() bool { return s.Due-s.Had > s.Verdict.Within }

// window is the time for which a share must be true, and the time after which it must be seen that it is not.
const window = 10 * time.Second

// Listen runs a scenario, and returns each second what is said of each load.
func Listen(sc Scenario, v Variant, seed uint64) [][]Said {
	sc = withDefaults(sc)
	n := newNode(sc, v, Enforced, seed)
	defer n.engine.Close()
	var busy [][]time.Duration
	out := make([][]Said, len(sc.Loads))
	for at := time.Duration(0); at <= sc.Warm+sc.Long; at += time.Second {
		n.run(at)
		busy = append(busy, n.busy())
		if at < window {
			continue
		}
		before := busy[(at-window)/time.Second]
		for i, p := range n.processes {
			if !p.exists || p.Outside {
				continue
			}
			verdict := n.scheduler.Verdict(at, p.lease)
			had := float64(busy[at/time.Second][i]-before[i]) / float64(window)
			out[i] = append(out[i], Said{at, i, verdict, had, sc.dueOf(i, at-window, at)})
		}
	}
	return out
}

// dueOf is the part of the time that is due to a load in a window: what it would use alone, and at most its share among those that are
// there.
func (sc *Scenario) dueOf(i int, from, to time.Duration) float64 {
	l := &sc.Loads[i]
	const step = 250 * time.Millisecond
	var sum float64
	for at := from; at < to; at += step {
		var total, kept float64
		for j := range sc.Loads {
			if x := &sc.Loads[j]; !x.Outside && x.there(at) {
				total += x.Share
				if x.LowLatency {
					kept += x.Share / 100
				}
			}
		}
		switch {
		case !l.there(at):
		case l.LowLatency:
			sum += max(l.Share/100, l.Share/total)
		case kept > 0:
			sum += (1 - kept) * l.Share / (total - 100*kept)
		default:
			sum += l.Share / total
		}
	}
	return min(sum*step.Seconds()/(to-from).Seconds(), l.wants(from, to))
}

func (l *Load) there(at time.Duration) bool { return at >= l.From && (l.Until == 0 || at < l.Until) }

// wants is the part of a window that a load would use alone.
func (l *Load) wants(from, to time.Duration) float64 {
	const step = 100 * time.Millisecond
	var sum float64
	for at := from; at < to; at += step {
		w, _ := l.at(at)
		part := *w
		off, _ := part.off(at)
		part.On, part.Off = 0, 0
		if l.there(at) && !off {
			sum += part.demand()
		}
	}
	return sum * step.Seconds() / (to - from).Seconds()
}

// Untrue returns what is said in vain: a window that lacks more than is said, and in none of the seconds up to a window later another
// thing was said.
func Untrue(said []Said) []Said {
	var out []Said
	for k := range said {
		if !said[k].lacks() || !said[k].claims() || k+int(window/time.Second) >= len(said) {
			continue
		}
		seen := false
		for _, later := range said[k:] {
			if later.At > said[k].At+window {
				break
			}
			seen = seen || !later.claims()
		}
		if !seen {
			out = append(out, said[k])
		}
	}
	return out
}
