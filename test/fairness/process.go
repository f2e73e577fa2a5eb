package fairness

import (
	"strconv"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// process is the processes of a lease. They do the same.
type process struct {
	Load
	node     *node
	lease    string
	pid      int
	grant    string
	leases   int           // that it had before this one
	ends     time.Duration // of this lease; never: not before Until
	exists   bool
	contexts []*engine.Context
	depth    int // kernels of the queue, for this slice

	frozen    bool
	frozenAt  time.Duration
	longest   time.Duration // frozen
	frozenFor time.Duration // in total
	next      time.Duration // its next step
	busy      map[int]time.Duration
	serving   []serving // by process
	latencies []time.Duration
}

// serving is what one process does with its requests.
type serving struct {
	thinks  time.Duration // until then; the arrival of the request that is next
	left    time.Duration // of the request that runs
	working bool
}

// pids are those of its processes.
func (p *process) pids() []int {
	var out []int
	for i := range max(1, p.Processes) {
		out = append(out, p.pid+1000*i)
	}
	return out
}

func (p *process) open() {
	p.contexts = nil
	for _, pid := range p.pids() {
		p.contexts = append(p.contexts, p.node.engine.AddContext(pid, "", engine.Options{Depth: 1 << 20}))
	}
}

func (p *process) start() {
	p.busy = map[int]time.Duration{}
	p.length()
	p.next, p.ends = p.From, never
	if p.Lease != 0 {
		p.ends = p.From + p.Lease
	}
	if p.exists {
		p.open()
	}
	w, _ := p.at(p.From)
	p.serving = make([]serving, len(p.pids()))
	for i := range p.serving {
		if w.Rate != 0 {
			p.serving[i].thinks = p.From + p.interval(w)
		}
	}
}

// interval draws the time until the next request.
func (p *process) interval(w *Program) time.Duration {
	return time.Duration(p.node.r.ExpFloat64() / w.Rate * float64(time.Second))
}

// length draws the length of the queue.
func (p *process) length() {
	w, _ := p.at(p.node.now())
	p.depth = max(1, int(float64(w.Queue)/float64(max(w.kernel(), 1))*(1+w.Jitter*(2*p.node.r.Float64()-1))+0.5))
}

// off reports whether it launches nothing now, and until when that is so.
func (w *Program) off(now time.Duration) (bool, time.Duration) {
	if w.Off == 0 {
		return false, never
	}
	in := now % (w.On + w.Off)
	if in < w.On {
		return false, now - in + w.On
	}
	return true, now - in + w.On + w.Off
}

// step launches work if it is time for it, and sets the time of the next step.
func (p *process) step() {
	now := p.node.now()
	if !p.exists {
		if p.Until != 0 && now >= p.Until {
			p.next = never
			return
		}
		p.exists = true
		p.open()
		p.changed()
	}
	if p.Until != 0 && now >= p.Until {
		p.node.busy()
		for _, c := range p.contexts {
			c.Close()
		}
		p.exists, p.frozen, p.next = false, false, never
		p.changed()
		return
	}
	if now >= p.ends {
		p.another()
	}
	if p.frozen {
		p.next = p.end()
		return
	}
	w, phase := p.at(now)
	off, change := w.off(now)
	change = min(change, phase)
	switch {
	case w.Queue > 0 && !off:
		if p.depth*int(w.kernel()) < int(w.Queue)/2 { // a new phase
			p.length()
		}
		p.fill(w)
		// Half of the queue, so that it never runs empty; a queue of one kernel is filled when that has ended.
		next := max(time.Duration(p.depth)*w.kernel()/2, 500*time.Microsecond)
		if p.depth == 1 {
			_, work := p.contexts[0].Queued()
			next = max(work, 20*time.Microsecond) // later if others run too
		}
		p.next = min(now+next, change)
	case off || w.Work == 0:
		p.next = change
	default:
		p.next = change
		for i, c := range p.contexts {
			p.next = min(p.next, p.wait(&p.serving[i], c, now, w))
		}
	}
	p.next = min(p.next, p.end())
}

// end is when its lease ends.
func (p *process) end() time.Duration {
	if p.Until != 0 {
		return min(p.Until, p.ends)
	}
	return p.ends
}

// another ends the lease and its processes, and begins others.
func (p *process) another() {
	p.node.busy()
	for _, c := range p.contexts {
		c.Close()
	}
	p.leases++
	p.frozen, p.ends = false, p.node.now()+p.Lease
	p.pid += 10_000
	p.lease = p.grant + "-" + strconv.Itoa(p.leases)
	p.open()
	p.changed()
}

func (p *process) changed() {
	if p.node.scheduler != nil && !p.Outside {
		p.node.members()
	}
}

// fill fills the queues.
func (p *process) fill(w *Program) {
	for _, c := range p.contexts {
		if n, _ := c.Queued(); n < p.depth {
			c.TryLaunch(w.kernel(), p.depth-n)
		}
	}
}

// wait waits for the work of a process to be done, then for its next request, and launches that. It returns its next step.
func (p *process) wait(x *serving, c *engine.Context, now time.Duration, w *Program) time.Duration {
	if n, work := c.Queued(); n != 0 {
		return now + max(work, 20*time.Microsecond) // later if others run too
	}
	if x.working && x.left <= 0 {
		x.working = false
		if w.requests() {
			p.latencies = append(p.latencies, now-x.thinks)
		}
		if w.Rate != 0 {
			x.thinks += p.interval(w)
		} else {
			x.thinks = now + w.Think
		}
	}
	if !x.working && now < x.thinks {
		return x.thinks
	}
	if !x.working {
		x.working, x.left = true, w.Work
		if w.Rate == 0 {
			x.thinks = max(x.thinks, now-w.Think) // after another phase
		}
	}
	k := min(w.kernel(), x.left)
	x.left -= k
	c.TryLaunch(k, 1)
	return now + k
}

func (p *process) freeze() {
	p.frozen, p.frozenAt = true, p.node.now()
	w, _ := p.at(p.frozenAt)
	if off, _ := w.off(p.frozenAt); w.Queue > 0 && !off {
		p.fill(w) // up to the freeze, it kept its queue full
	}
	if p.AtFreeze != 0 {
		p.contexts[0].TryLaunch(5*ms, int(p.AtFreeze/(5*ms)))
	}
	p.next = p.end()
}

func (p *process) thaw() {
	now := p.node.now()
	p.frozen = false
	p.longest = max(p.longest, now-p.frozenAt)
	p.frozenFor += now - p.frozenAt
	p.length()
	if p.next = now + p.node.late(); p.next == now {
		p.step()
	}
}
