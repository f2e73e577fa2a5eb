package fairness

import (
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// process is the only process of a lease.
type process struct {
	Load
	node    *node
	lease   string
	pid     int
	exists  bool
	context *engine.Context
	depth   int // kernels of the queue, for this slice
	kernel  time.Duration

	frozen   bool
	frozenAt time.Duration
	longest  time.Duration // frozen
	thinks   time.Duration // until then
	working  bool
	next     time.Duration // its next step
	busy     time.Duration
}

func (p *process) start() {
	p.kernel = p.Kernel
	if p.kernel == 0 {
		p.kernel = min(5*time.Millisecond, p.Queue)
	}
	if p.Queue == 0 {
		p.kernel = p.Work
	}
	p.length()
	p.next = p.From
	if p.exists {
		p.context = p.node.engine.AddContext(p.pid, "", engine.Options{Depth: 1 << 20})
	}
}

// length draws the length of the queue.
func (p *process) length() {
	p.depth = max(1, int(float64(p.Queue)/float64(p.kernel)*(1+p.Jitter*(2*p.node.r.Float64()-1))+0.5))
}

// off reports whether it launches nothing now, and until when that is so.
func (p *process) off(now time.Duration) (bool, time.Duration) {
	if p.Off == 0 {
		return false, never
	}
	in := now % (p.On + p.Off)
	if in < p.On {
		return false, now - in + p.On
	}
	return true, now - in + p.On + p.Off
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
		p.context = p.node.engine.AddContext(p.pid, "", engine.Options{Depth: 1 << 20})
		p.changed()
	}
	if p.Until != 0 && now >= p.Until {
		p.node.busy()
		p.context.Close()
		p.exists, p.frozen, p.next = false, false, never
		p.changed()
		return
	}
	if p.frozen {
		p.next = never
		if p.Until != 0 {
			p.next = p.Until
		}
		return
	}
	off, change := p.off(now)
	switch {
	case off:
		p.next = change
	case p.Queue > 0:
		p.fill()
		// Half of the queue, so that it never runs empty; a queue of one kernel is filled when that has ended.
		next := max(time.Duration(p.depth)*p.kernel/2, 500*time.Microsecond)
		if p.depth == 1 {
			_, work := p.context.Queued()
			next = max(work, 20*time.Microsecond) // later if others run too
		}
		p.next = min(now+next, change)
	default:
		p.wait(now)
	}
	if p.Until != 0 {
		p.next = min(p.next, p.Until)
	}
}

func (p *process) changed() {
	if p.node.scheduler != nil && !p.Outside {
		p.node.members()
	}
}

// fill fills the queue.
func (p *process) fill() {
	if n, _ := p.context.Queued(); n < p.depth {
		p.context.TryLaunch(p.kernel, p.depth-n)
	}
}

// wait waits for the work to be done, thinks, and launches the next.
func (p *process) wait(now time.Duration) {
	if p.working {
		if n, work := p.context.Queued(); n != 0 {
			p.next = now + max(work, 20*time.Microsecond) // later if others run too
			return
		}
		p.working = false
		p.thinks = now + p.Think
	}
	if now < p.thinks {
		p.next = p.thinks
		return
	}
	p.context.TryLaunch(p.Work, 1)
	p.working = true
	p.next = now + p.Work
}

func (p *process) freeze() {
	p.frozen, p.frozenAt = true, p.node.now()
	if off, _ := p.off(p.frozenAt); p.Queue > 0 && !off {
		p.fill() // up to the freeze, it kept its queue full
	}
	p.next = never
	if p.Until != 0 {
		p.next = p.Until
	}
}

func (p *process) thaw() {
	now := p.node.now()
	p.frozen = false
	p.longest = max(p.longest, now-p.frozenAt)
	p.length()
	if p.next = now + p.node.late(); p.next == now {
		p.step()
	}
}
