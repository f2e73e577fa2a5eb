package quota

import "time"

// busyLog is how busy a GPU was in each second of the last minute and a bit, by its own series. A second without samples is unknown.
type busyLog struct {
	busy, known [80]time.Duration
	newest      int64 // second
}

// add adds a period of one of the tracks of a scheduler; of several GPUs together nothing is said.
func (l *busyLog) add(p period, tracks int) {
	if tracks != 1 {
		*l = busyLog{}
		return
	}
	size := int64(len(l.busy))
	part := 1 - float64(p.idle)/float64(max(p.to-p.from, 1))
	for second := int64(p.from / time.Second); second <= int64((p.to-1)/time.Second); second++ {
		for l.newest < second {
			l.newest = max(l.newest+1, second-size+1)
			l.busy[l.newest%size], l.known[l.newest%size] = 0, 0
		}
		if second <= l.newest-size {
			continue
		}
		over := overlap(p.from, p.to, time.Duration(second)*time.Second, time.Duration(second+1)*time.Second)
		l.busy[second%size] += time.Duration(part * float64(over))
		l.known[second%size] += over
	}
}

// part is the busy part of a time, unless a good part of it is unknown.
func (l *busyLog) part(from, to time.Duration) (busy float64, ok bool) {
	var sum, known time.Duration
	size := int64(len(l.busy))
	for second := int64(max(from, 0) / time.Second); second < int64(to/time.Second); second++ {
		if second <= l.newest && second > l.newest-size {
			sum, known = sum+l.busy[second%size], known+l.known[second%size]
		}
	}
	return float64(sum) / float64(max(known, 1)), known >= (to-from)*3/4
}
