package quota

import "time"

// A lease above its share has its share and what the others leave: in the max-min fair division those that would use less than their shares
// have what they would use, and the rest is divided by the shares of those that would use more.

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
			if x == m || served[x] {
				continue
			}
			use := x.windows.wouldUse(dueWindow)
			if use > left*x.weight/weights {
				continue
			}
			left, weights = left-use, weights-x.weight
			served[x], again = true, true
		}
	}
	return max(m.weight, left*m.weight/weights)
}

// wouldUse is the part of the time that a lease next to the slices would use alone, as far as a window that ends with the last answer shows
// that: what it lacks because others run next to it, it does not leave.
func (w *windows) wouldUse(window time.Duration) float64 {
	var used, nextTo, length float64
	for i := len(w.list) - 1; i >= 0; i-- {
		o := &w.list[i]
		d := (o.to - o.from).Seconds()
		if length+d/2 > window.Seconds() {
			break
		}
		used, nextTo, length = used+o.used, nextTo+o.nextTo*d, length+d
	}
	if length == 0 {
		return 0
	}
	return alone(used/length, nextTo/length)
}
