package quota

import "time"

// A lease above its share has its share and what the others leave: in the max-min fair division those that use less than their shares have
// what they use, and the rest is divided by the shares of those that would use more.

// dueWindow is the time over which it is seen what others leave.
const dueWindow = 3 * time.Second

// shareOut computes the part of the time that is due to each lease next to the slices if it takes all that it can get.
func (s *Scheduler) shareOut() {
	for _, m := range s.free {
		m.due = s.dueTo(m)
	}
}

func (s *Scheduler) dueTo(m *member) float64 {
	left, weights := 1.0, m.weight
	served := map[*member]bool{}
	for _, x := range s.in {
		weights += x.weight
	}
	for _, x := range s.free {
		if x != m {
			weights += x.weight
		}
	}
	for again := true; again; {
		again = false
		for _, x := range s.free {
			use := s.useOver(x, dueWindow)
			if x == m || served[x] || use > left*x.weight/weights {
				continue
			}
			left, weights = left-use, weights-x.weight
			served[x], again = true, true
		}
	}
	return max(m.weight, left*m.weight/weights)
}
