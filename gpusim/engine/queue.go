package engine

import "math"

// batch is a sequence of kernels of equal duration in a queue.
type batch struct {
	kernel float64 // duration of one kernel in ns of a whole GPU
	left   float64 // remaining ns of all of them
}

// kernels counts the unfinished kernels, including the running one.
func (b batch) kernels() int { return int(math.Ceil(b.left/b.kernel - 1e-6)) }

// queue are the kernels of one context, in order. Equal consecutive kernels are one entry, so a full queue costs as
// little as an empty one.
type queue struct {
	batches []batch
	space   []batch // the array of batches, to use it again after the queue was empty
}

func (q *queue) push(kernel float64, n int) {
	if last := len(q.batches) - 1; last >= 0 && q.batches[last].kernel == kernel {
		q.batches[last].left += kernel * float64(n)
		return
	}
	empty := len(q.batches) == 0
	if empty {
		q.batches = q.space[:0]
	}
	q.batches = append(q.batches, batch{kernel: kernel, left: kernel * float64(n)})
	if empty {
		q.space = q.batches
	}
}

// run removes work in ns from the queue and returns how much of it was done.
func (q *queue) run(work float64) float64 {
	var done float64
	for len(q.batches) > 0 && work > 0 {
		head := &q.batches[0]
		if head.left-work > 0.5 { // half a nanosecond: less than this is rounding
			head.left -= work
			return done + work
		}
		done += head.left
		work -= head.left
		q.batches = q.batches[1:]
	}
	return done
}

// work is the remaining ns of the whole queue.
func (q *queue) work() float64 {
	var w float64
	for _, b := range q.batches {
		w += b.left
	}
	return w
}

// started is the remaining ns of the kernel that runs; 0 when none has begun.
func (q *queue) started() float64 {
	if len(q.batches) == 0 {
		return 0
	}
	head := q.batches[0]
	rest := head.left - float64(head.kernels()-1)*head.kernel
	if head.kernel-rest < 1000 { // less than a microsecond is rounding
		return 0
	}
	return rest
}

func (q *queue) kernels() int {
	n := 0
	for _, b := range q.batches {
		n += b.kernels()
	}
	return n
}

// workUntil returns the work in ns after which at most n kernels are unfinished.
func (q *queue) workUntil(n int) float64 {
	need := q.kernels() - n
	var w float64
	for _, b := range q.batches {
		if need <= 0 {
			break
		}
		if k := b.kernels(); k <= need {
			w += b.left
			need -= k
			continue
		} else if rest := b.left - float64(k-need)*b.kernel; rest > 0 {
			w += rest
		}
		break
	}
	return w
}
