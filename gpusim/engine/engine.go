package engine

import (
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Engine is the compute engine of one GPU or one GPU instance. Its methods may be called concurrently.
type Engine struct {
	clock Clock
	dated DatedClock // the same clock; nil when its date is never set
	epoch time.Time  // the start of now

	// mu guards everything below and the state of every context. No callback runs while it is held.
	mu       sync.Mutex
	now      time.Duration // the model is computed up to this time
	jumped   time.Duration // how far the date was set forward since the start
	groups   map[string]*group
	active   []*Context // contexts with work, in the order in which they received it
	running  int        // groups with an active context
	shares   uint64     // counts the divisions of the engine's time
	waiting  map[*Context]struct{}
	pids     map[int]*account
	sampler  sampler
	rotation rotation
	ran      time.Duration // for how long something ran, since the start
	worked   float64       // ns of a whole engine, since the start
	timer    Timer
	due      time.Duration // when the timer fires; negative when it is not set
	closed   bool
}

// group are the contexts that share one time slice: those of one process, or of all clients of one MPS server.
type group struct {
	name     string
	contexts int
	active   []*Context
	shared   uint64 // the last division of the engine's time in which the group took part
}

// never is later than any event, so that no timer is needed.
const never = time.Duration(math.MaxInt64)

// New returns an idle engine with the default sampling. It starts no goroutine; Close stops its timer.
func New(clock Clock) *Engine { return NewSampled(clock, Sampling{}) }

// NewSampled is New with another sampling, which must be valid.
func NewSampled(clock Clock, s Sampling) *Engine {
	dated, _ := clock.(DatedClock)
	return &Engine{
		clock:   clock,
		dated:   dated,
		epoch:   clock.Now(),
		groups:  map[string]*group{},
		waiting: map[*Context]struct{}{},
		pids:    map[int]*account{},
		sampler: newSampler(s),
		due:     -1,
	}
}

// AddContext adds an idle context of a process. Contexts of one group run concurrently and share one time slice: use the
// MPS server as the group name. With an empty name the process is its own group.
func (e *Engine) AddContext(pid int, groupName string, o Options) *Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	if groupName == "" {
		groupName = "pid " + strconv.Itoa(pid)
	}
	g := e.groups[groupName]
	if g == nil {
		g = &group{name: groupName}
		e.groups[groupName] = g
	}
	a := e.pids[pid]
	if a == nil {
		a = &account{pid: pid}
		e.pids[pid] = a
	}
	c := &Context{e: e, acct: a, group: g, depth: o.Depth, share: o.Share, closed: e.closed}
	if c.depth <= 0 {
		c.depth = DefaultDepth
	}
	if c.share <= 0 || c.share > 1 {
		c.share = 1
	}
	if !c.closed {
		g.contexts++
		a.contexts++
	}
	return c
}

// Close closes every context and stops the timer. The samples and accounts can still be read.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	for len(e.active) > 0 {
		e.active[0].closeLocked()
	}
	for c := range e.waiting {
		c.closeLocked()
	}
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	e.due = -1
}

// busyLocked adds a context with work to the active ones.
func (e *Engine) busyLocked(c *Context) {
	if c.active || len(c.queue.batches) == 0 {
		return
	}
	c.active = true
	e.active = append(e.active, c)
	if len(c.group.active) == 0 {
		e.running++
		e.rotation.add(c.group, e.now)
	}
	c.group.active = append(c.group.active, c)
	e.shareLocked()
}

// idleLocked removes a context without work from the active ones.
func (e *Engine) idleLocked(c *Context) {
	if !c.active {
		return
	}
	c.active, c.rate = false, 0
	e.active = remove(e.active, c)
	c.group.active = remove(c.group.active, c)
	if len(c.group.active) == 0 {
		e.running--
		e.rotation.remove(c.group, e.now)
	}
	e.shareLocked()
}

func remove(list []*Context, c *Context) []*Context {
	i := slices.Index(list, c)
	return slices.Delete(list, i, i+1)
}

// shareLocked sets the rate of every active context: groups share equally, and contexts within a group share equally,
// none above its own share of the group's time. When they take turns, one group has the engine.
func (e *Engine) shareLocked() {
	if r := &e.rotation; r.Slice != 0 {
		for i, g := range r.groups {
			if i == r.current {
				g.distribute(1)
				continue
			}
			for _, c := range g.active {
				c.rate = 0
			}
		}
		return
	}
	e.shares++
	for _, c := range e.active {
		if g := c.group; g.shared != e.shares {
			g.shared = e.shares
			g.distribute(1 / float64(e.running))
		}
	}
}

// distribute divides the group's rate among its contexts: the smallest shares first, the rest to the others.
func (g *group) distribute(rate float64) {
	order := g.active
	if slices.ContainsFunc(order, func(c *Context) bool { return c.share < 1 }) {
		order = slices.SortedStableFunc(slices.Values(order), func(a, b *Context) int {
			switch {
			case a.share < b.share:
				return -1
			case a.share > b.share:
				return 1
			}
			return 0
		})
	}
	left := rate
	for i, c := range order {
		c.rate = min(c.share*rate, left/float64(len(order)-i))
		left -= c.rate
	}
}

// advanceLocked computes the model up to now.
func (e *Engine) advanceLocked() {
	to := e.clock.Now().Sub(e.epoch)
	if e.dated != nil {
		// The two clocks are not read at the same time: less than a millisecond is not a step.
		if jumped := e.dated.Date().Sub(e.epoch.Round(0)) - to; (jumped - e.jumped).Abs() >= time.Millisecond {
			e.jumped = jumped
		}
	}
	for e.now < to {
		if len(e.active) == 0 {
			e.skipLocked(to)
			return
		}
		e.switchLocked()
		stop := min(to, e.sampler.next, e.firstEndLocked(), e.sliceEndLocked())
		e.runLocked(stop - e.now)
		e.now = stop
		for i := 0; i < len(e.active); {
			if c := e.active[i]; len(c.queue.batches) == 0 {
				e.idleLocked(c)
			} else {
				i++
			}
		}
		if e.now == e.sampler.next {
			e.tickLocked()
		}
	}
}

// firstEndLocked returns when the first queue becomes empty at the present rates.
func (e *Engine) firstEndLocked() time.Duration {
	first := math.Inf(1)
	for _, c := range e.active {
		first = min(first, c.queue.work()/c.rate)
	}
	return e.after(first)
}

// after returns the time a number of ns from now, rounded up, so that waiting for it makes progress.
func (e *Engine) after(ns float64) time.Duration {
	if ns > float64(never-e.now)/2 {
		return never
	}
	return e.now + max(time.Duration(math.Ceil(ns)), 1)
}

// runLocked runs every active context at its rate.
func (e *Engine) runLocked(d time.Duration) {
	s := &e.sampler
	s.last = s.last[:0]
	for _, c := range e.active {
		work := c.queue.run(c.rate * float64(d))
		e.worked += work
		s.add(c.acct, work)
		if s.o.Naming == NameLast {
			s.last = append(s.last, part{c.acct, c.rate})
		}
	}
	s.busy += d
	if len(e.active) > 0 {
		e.ran += d
	}
}

// Counters returns for how long something ran since the start, and the work in time of a whole engine: two counters of the hardware.
func (e *Engine) Counters() (ran, worked time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	return e.ran, time.Duration(e.worked)
}

// scheduleLocked wakes the waiters whose condition is true, and sets the timer for the next one. Every public method that
// changes what runs calls it last.
func (e *Engine) scheduleLocked() {
	for c := range e.waiting {
		c.wakeLocked()
	}
	if len(e.waiting) == 0 || e.closed {
		if e.due >= 0 {
			e.timer.Stop()
			e.due = -1
		}
		return
	}
	// A queue that becomes empty changes the rates of all others, so the first end counts even without a waiter for it.
	next := min(e.firstEndLocked(), e.sliceEndLocked())
	for c := range e.waiting {
		if c.rate == 0 {
			continue
		}
		for _, w := range c.waiters {
			next = min(next, e.after(c.queue.workUntil(w.limit)/c.rate))
		}
	}
	if next == e.due || next == never {
		return
	}
	e.due = next
	if e.timer == nil {
		e.timer = e.clock.AfterFunc(next-e.now, e.fire)
		return
	}
	e.timer.Reset(next - e.now)
}

// fire is the timer's callback.
func (e *Engine) fire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.due = -1
	e.advanceLocked()
	e.scheduleLocked()
}
