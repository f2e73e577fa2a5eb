package fairness

import "time"

const gainStep = 250 * ms

// gain watches what the first load of a scenario gets in any ten seconds, at any time, above what is due to a lease that always has work:
// its share, and what the others leave.
type gain struct {
	busy  [][]time.Duration // each gainStep
	from  time.Duration
	worst float64 // points
}

// run runs up to a moment, and watches.
func (g *gain) run(n *node, to time.Duration) {
	for at := n.now() + gainStep; at <= to; at += gainStep {
		n.run(at)
		g.note(n, at)
	}
	n.run(to)
}

func (g *gain) note(n *node, at time.Duration) {
	if len(g.busy) == 0 {
		g.from = at
	}
	g.busy = append(g.busy, n.busy())
	before := len(g.busy) - 1 - int(window/gainStep)
	if before < 0 {
		return
	}
	got := float64(g.busy[len(g.busy)-1][0]-g.busy[before][0]) / float64(window)
	g.worst = max(g.worst, 100*(got-n.sc.mayHave(at-window, at)))
}

// mayHave is the part of a window that the first load has if it always has work, and each other what it would use alone.
func (sc *Scenario) mayHave(from, to time.Duration) float64 {
	weights, demands := make([]float64, len(sc.Loads)), make([]float64, len(sc.Loads))
	for i := range sc.Loads {
		weights[i], demands[i] = sc.Loads[i].Share, 1
		if i != 0 {
			demands[i] = sc.Loads[i].demand(from, to)
		}
	}
	return MaxMin(1, weights, demands)[0]
}
