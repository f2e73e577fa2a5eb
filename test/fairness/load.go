package fairness

import (
	"cmp"
	"time"

	"github.com/gpushare/gpushare/quota"
)

// Load is what the process of one lease does.
type Load struct {
	Share   float64
	Program // if there are no Phases
	// Phases follow each other, again and again.
	Phases []Phase
	// Processes launch the same each. 0: one.
	Processes int
	// AtFreeze is how much work it launches when it is frozen, as if it knew that.
	AtFreeze time.Duration
	// From and Until are when it exists; 0: from the start, to the end.
	From, Until time.Duration
	// Grant is the grant of the load; those of one grant divide its share, and their user is the same. Empty: each has one of its own.
	Grant string
	// Lease is how long its lease and its processes last, until others do the same; 0: it has one lease.
	Lease      time.Duration
	Priority   quota.Priority
	Cap        float64 // 0: none
	LowLatency bool
	Outside    bool // not a lease: it runs at any time
}

// Program is what a process launches.
type Program struct {
	Queue  time.Duration // of work that is always queued while it runs; 0: it waits for each Work
	Kernel time.Duration // of the queue; 0: 5 ms, or the queue if that is shorter. Of the work: launched one by one; 0: all of it
	Jitter float64       // of the queue, uniform: a new length for every slice
	Work   time.Duration // without a queue: on the GPU, then
	Think  time.Duration // on the host
	// Rate is how many requests of Work arrive in a second, at random; 0: the next Work is launched after Think.
	Rate float64
	// On and Off alternate: it launches nothing while off. 0: always on.
	On, Off time.Duration
}

// Phase is a part of the time of a load.
type Phase struct {
	Long time.Duration
	Program
}

// at is what a load does at a moment, and until when.
func (l *Load) at(now time.Duration) (*Program, time.Duration) {
	if len(l.Phases) == 0 {
		return &l.Program, never
	}
	var cycle time.Duration
	for i := range l.Phases {
		cycle += l.Phases[i].Long
	}
	end := now - now%cycle
	for i := range l.Phases {
		if end += l.Phases[i].Long; now < end {
			return &l.Phases[i].Program, end
		}
	}
	panic("fairness: phases without a length")
}

// demand is the part of the GPU that the load uses alone, 0…1, between two moments.
func (l *Load) demand(from, to time.Duration) float64 {
	var sum float64
	for at := from; at < to; {
		w, end := l.at(at)
		end = min(end, to)
		sum += min(1, w.demand()*float64(max(1, l.Processes))) * float64(end-at)
		at = end
	}
	return sum / float64(to-from)
}

func (w *Program) demand() float64 {
	part := 1.0
	if w.Off != 0 {
		part = float64(w.On) / float64(w.On+w.Off)
	}
	switch {
	case w.Queue != 0:
		return part
	case w.Rate != 0:
		return part * min(w.Rate*w.Work.Seconds(), 1)
	case w.Work == 0:
		return 0
	}
	return part * float64(w.Work) / float64(w.Work+w.Think)
}

// kernel is the length of a kernel.
func (w *Program) kernel() time.Duration {
	if w.Queue == 0 {
		return cmp.Or(w.Kernel, w.Work)
	}
	return cmp.Or(w.Kernel, min(5*time.Millisecond, w.Queue))
}

// requests reports whether how long each Work takes is of interest: not of a program that does nothing else.
func (w *Program) requests() bool {
	return w.Queue == 0 && (w.Rate != 0 || w.Think >= 5*time.Millisecond)
}
