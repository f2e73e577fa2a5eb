package fairness

import "time"

// due is the percentage of the time, of the busy time when all loads are bound, that each load should have; not ok while loads come
// and go, and up to WarmUp after that.
func (sc *Scenario) due(from, to time.Duration) ([]float64, bool) {
	out := make([]float64, len(sc.Loads))
	weights, demands := make([]float64, len(sc.Loads)), make([]float64, len(sc.Loads))
	left := 1.0
	for i := range sc.Loads {
		l := &sc.Loads[i]
		if l.Outside {
			continue
		}
		if l.From > 0 && to > l.From && from < l.From+WarmUp || l.Until > 0 && to > l.Until && from < l.Until+WarmUp {
			return nil, false
		}
		if from >= l.From && (l.Until == 0 || to <= l.Until) {
			weights[i], demands[i] = l.Share, 1
			if !sc.Bound {
				demands[i] = l.demand(from, to)
			}
		}
	}
	for i, part := range MaxMin(left, weights, demands) {
		out[i] = 100 * part
		if sc.Loads[i].Outside {
			out[i] = -1
		}
	}
	return out, true
}

// MaxMin divides an amount among demands by weights: who wants less than its weight gives has what it wants, and the others divide
// the rest by their weights.
func MaxMin(amount float64, weights, demands []float64) []float64 {
	out := make([]float64, len(weights))
	done := make([]bool, len(weights))
	for {
		var total float64
		for i, w := range weights {
			if !done[i] {
				total += w
			}
		}
		if total == 0 {
			return out
		}
		served := false
		for i, w := range weights {
			if !done[i] && demands[i] <= amount*w/total {
				out[i], done[i], served = demands[i], true, true
			}
		}
		if !served {
			for i, w := range weights {
				if !done[i] {
					out[i] = amount * w / total
				}
			}
			return out
		}
		amount = 1
		for i := range out {
			if done[i] {
				amount -= out[i]
			}
		}
	}
}

// errors are the differences in points from what is due in a window.
func (sc *Scenario) errors(before, now []time.Duration, want []float64, window time.Duration) []float64 {
	total := window
	if sc.Bound {
		total = 0
		for i := range now {
			if want[i] >= 0 {
				total += now[i] - before[i]
			}
		}
	}
	var out []float64
	for i := range now {
		if want[i] > 0 {
			out = append(out, 100*float64(now[i]-before[i])/float64(max(total, 1))-want[i])
		}
	}
	return out
}
