package quota

import (
	"slices"
	"time"
)

const (
	// longWindow is how long observations are kept.
	longWindow = time.Minute
	// chargedAfter is after how long what was charged for the time before is known.
	chargedAfter = 2 * time.Second
	// needAge is how long what a lease used alone is of now.
	needAge = 6 * time.Minute
	// processesKept is for how long a process counts that a sample named.
	processesKept = 10 * time.Second
	// takesAll is the part of what a lease can get from which on it takes all of it.
	takesAll = 0.8
	// learnsFor is how long it takes to learn what a new lease does.
	learnsFor = 20 * time.Second
	// noWork is the part of its trials that a lease uses without work.
	noWork = 0.02
)

// observation is what the driver's samples said of a lease over a time, with what was due to it then. Where the driver said nothing
// there is none.
type observation struct {
	from, to time.Duration
	used     float64 // seconds
	due      float64 // the same
	thawed   float64 // the same
	nextTo   float64 // processes of others that ran next to it
	free     bool    // it ran next to the slices
	idle     bool    // it had no work
	alone    bool    // no other lease had the GPU open
	outside  float64 // seconds of processes without a lease
	sampled  float64 // seconds of all processes: an idle GPU has no samples of any, so that parts of them may be too large
}

// windows is what is known of a lease for Decide.
type windows struct {
	list      []observation // of longWindow, oldest first
	frozen    time.Duration // its frozen time at the last one
	sliced    time.Duration // since then it has slices, and what they are charged is what it used
	processes map[int]time.Duration
	need      float64 // what it used when it had the GPU to itself
	needAt    time.Duration
	needKnown bool
}

// noteNeed keeps what a lease used of a time in which it had the GPU to itself.
func (s *Scheduler) noteNeed(m *member, part float64) {
	m.windows.need, m.windows.needAt, m.windows.needKnown = part, s.last, true
}

// noteTrial keeps what the series says that a lease used in its trials.
func (s *Scheduler) noteTrial(m *member) {
	if idle, ok := m.own.most(); ok && s.hasSeries() {
		s.noteNeed(m, 1-idle)
	}
}

// ObservePIDs adds the processes that samples of the last answer name, with their leases: the GPU divides its time by processes.
func (s *Scheduler) ObservePIDs(now time.Duration, leases map[int]string) {
	s.account(now)
	for _, m := range s.members {
		w := &m.windows
		for pid, lease := range leases {
			if lease == m.Lease {
				if w.processes == nil {
					w.processes = map[int]time.Duration{}
				}
				w.processes[pid] = s.last
			}
		}
		for pid, at := range w.processes {
			if s.last-at > processesKept {
				delete(w.processes, pid)
			}
		}
	}
}

// processCount is how many processes of a lease use the GPU.
func (m *member) processCount() float64 { return float64(max(1, len(m.windows.processes))) }

// observeWindows adds an answer about the processes of all leases.
func (s *Scheduler) observeWindows(from, to time.Duration, busy map[string]float64) {
	length := (to - from).Seconds()
	var sampled float64
	for _, part := range busy {
		sampled += part * length
	}
	active := 0
	for _, m := range s.members {
		if m.Active && !m.removed {
			active++
		}
	}
	for _, m := range s.members {
		w := &m.windows
		if !s.charges(m) {
			w.sliced = s.last
		}
		frozen := s.frozenTime(m)
		thawed := min(max(length-(frozen-w.frozen).Seconds(), 0), length)
		w.frozen = frozen
		if from < m.joined {
			continue // Of a part of it nothing is known.
		}
		o := observation{
			from:    from,
			to:      to,
			used:    min(busy[m.Lease], 1) * length,
			thawed:  thawed,
			nextTo:  s.nextTo(m),
			free:    s.runsFree(m),
			idle:    m.own.idle && busy[m.Lease] == 0 && thawed > length*9/10,
			alone:   active < 2 && min(busy[""], 1) <= 0.02 && thawed > length*9/10,
			outside: min(busy[""], 1) * length,
			sampled: sampled,
		}
		if s.present(m) || m.own.idle { // One that has no work now may have had some in the window.
			o.due = m.weight * length
			if m.cap != 0 {
				o.due = min(o.due, m.cap*length)
			}
		}
		w.list = append(w.list, o)
		n := 0
		for n < len(w.list) && w.list[n].to <= to-longWindow {
			n++
		}
		w.list = slices.Delete(w.list, 0, n)
	}
}

// charges reports whether what a lease is charged is what it uses: it has slices, and how long its queued work runs is measured.
func (s *Scheduler) charges(m *member) bool {
	known := func(x *member) bool {
		most, _ := x.own.most() // Idle time of its host is taken for the end of its queued work if it comes in one piece.
		return len(x.backlog.sorted) >= 4 && s.measures(x) && most < leastIdle/2
	}
	return s.enforces() && s.participates(m) && len(s.in) > 1 && m.own.n >= 4 &&
		!slices.ContainsFunc(s.in, func(x *member) bool { return !known(x) })
}

// nextTo is how many processes of others run next to a lease while it runs.
func (s *Scheduler) nextTo(m *member) float64 {
	var n float64
	sliced := s.enforces()
	for _, x := range s.in {
		switch {
		case x == m || sliced && s.participates(m):
		case sliced:
			n += x.processCount() * x.weightAmong(s.in) // One of them has its slice.
		default:
			n += x.processCount()
		}
	}
	heavy := n
	for _, x := range s.free {
		if x != m {
			used := x.windows.over(useWindow, s).Used
			n += x.processCount() * min(1, used*(heavy+1)/x.processCount())
		}
	}
	return n
}

func (m *member) weightAmong(list []*member) float64 {
	var sum float64
	for _, x := range list {
		sum += x.weight
	}
	return m.weight / max(sum, 1e-9)
}

// over sums up the observations of a window that ends with the last one.
func (w *windows) over(window time.Duration, s *Scheduler) Window {
	var out Window
	var sampled float64
	for i := len(w.list) - 1; i >= 0; i-- {
		o := &w.list[i]
		if out.Known+(o.to-o.from)/2 > window || o.from < w.list[len(w.list)-1].to-window-(o.to-o.from)/2 {
			break
		}
		out.Known += o.to - o.from
		out.Used += o.used
		out.Due += o.due
		sampled += o.sampled
	}
	length := out.Known.Seconds()
	if length == 0 {
		return Window{}
	}
	out.Used, out.Due = out.Used/length, out.Due/length
	last := w.list[len(w.list)-1].to
	if busy, ok := s.gpuBusy.part(last-out.Known, last); ok && sampled > 0 {
		out.Used *= min(1, busy*length/sampled)
	}
	out.Error = max(s.sampleSeconds(out.Used, out.Known), s.sampleSeconds(out.Due, out.Known)) / length
	return out
}

// last returns the observations of the last ten seconds.
func (w *windows) last() []observation {
	n := len(w.list)
	i := n
	for i > 0 && w.list[i-1].from > w.list[n-1].to-recentWindow-time.Second/2 {
		i--
	}
	return w.list[i:]
}
