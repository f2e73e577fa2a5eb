package worker

import "time"

// gpuThread is the queue of one thread of a GPU. Only its goroutine uses it.
type gpuThread struct {
	s     *server
	queue <-chan job
	later []job // taken from the queue, and not executed yet
}

// next waits for the next request; ok is false after the last one.
func (t *gpuThread) next() (j job, ok bool) {
	if len(t.later) > 0 {
		j, t.later = t.later[0], t.later[1:]
		return j, true
	}
	j, ok = <-t.queue
	return j, ok
}

// between executes the next request if it may go in between, and returns how long that took. One at most: the reading that yields goes
// on, however many wait.
func (t *gpuThread) between() time.Duration {
	if len(t.later) > 0 {
		return 0
	}
	select {
	case j, ok := <-t.queue:
		if !ok {
			return 0
		}
		if !operations[j.req.Op].between {
			t.later = append(t.later, j)
			return 0
		}
		began := time.Now()
		t.s.execute(j, nil)
		return time.Since(began)
	default:
		return 0
	}
}
