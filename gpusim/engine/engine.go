package engine

import (
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Engine is the time of one GPU or one GPU instance. Its methods may be called concurrently.
type Engine struct {
	clock Clock
	epoch time.Time // what now counts from

	// mu guards everything below and the state of every context. Nothing is called back while it is held.
	mu      sync.Mutex
	now     time.Duration // up to when the model has been run
	groups  map[string]*group
	active  []*Context // those with work, in the order in which they got it
	running int        // groups with an active context
	waiting map[*Context]struct{}
	pids    map[int]*account
	sampler sampler
	timer   Timer
	due     time.Duration // when the timer fires; negative when it is not set
	closed  bool
}

// group is the contexts that share one turn: those of one process, or of all clients of one MPS server.
type group struct {
	name     string
	contexts int
	active   []*Context
}

// never is later than any event: no timer is needed.
const never = time.Duration(math.MaxInt64)

// New makes an idle engine. It starts no goroutine; Close stops its timer.
func New(clock Clock) *Engine {
	return &Engine{
		clock:   clock,
		epoch:   clock.Now(),
		groups:  map[string]*group{},
		waiting: map[*Context]struct{}{},
		pids:    map[int]*account{},
		sampler: sampler{next: SamplePeriod, seed: 0x9e3779b97f4a7c15},
		due:     -1,
	}
}

// AddContext adds an idle context of a process. Contexts of one group run side by side and get one turn together: name
// the MPS server there. With an empty group the process is a group of its own.
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

// busyLocked puts a context that has work among the active ones.
func (e *Engine) busyLocked(c *Context) {
	if c.rate > 0 || len(c.queue.batches) == 0 {
		return
	}
	e.active = append(e.active, c)
	if len(c.group.active) == 0 {
		e.running++
	}
	c.group.active = append(c.group.active, c)
	e.shareLocked()
}

// idleLocked takes a context that has no work off the active ones.
func (e *Engine) idleLocked(c *Context) {
	if c.rate == 0 {
		return
	}
	c.rate = 0
	e.active = remove(e.active, c)
	c.group.active = remove(c.group.active, c)
	if len(c.group.active) == 0 {
		e.running--
	}
	e.shareLocked()
}

func remove(list []*Context, c *Context) []*Context {
	i := slices.Index(list, c)
	return slices.Delete(list, i, i+1)
}

// shareLocked gives every active context its rate: groups share equally, and within a group its contexts do, none above
// its own share of the group's time.
func (e *Engine) shareLocked() {
	done := make(map[*group]bool, e.running)
	for _, c := range e.active {
		if g := c.group; !done[g] {
			done[g] = true
			g.distribute(1 / float64(e.running))
		}
	}
}

// distribute deals out the group's rate: the smallest shares first, and what they leave to the others.
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

// advanceLocked runs the model up to now.
func (e *Engine) advanceLocked() {
	to := e.clock.Now().Sub(e.epoch)
	for e.now < to {
		if len(e.active) == 0 {
			e.skipLocked(to)
			return
		}
		stop := min(to, e.sampler.next, e.firstEndLocked())
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

// skipLocked passes a time in which nothing runs: only the period that has begun can still give a sample.
func (e *Engine) skipLocked(to time.Duration) {
	if e.sampler.next <= to {
		e.now = e.sampler.next
		e.tickLocked()
	}
	if e.sampler.next <= to {
		e.sampler.next += ((to-e.sampler.next)/SamplePeriod + 1) * SamplePeriod
	}
	e.now = to
}

// firstEndLocked is when the first queue runs empty at the present rates.
func (e *Engine) firstEndLocked() time.Duration {
	first := math.Inf(1)
	for _, c := range e.active {
		first = min(first, c.queue.work()/c.rate)
	}
	return e.after(first)
}

// after is the time a number of ns from now, rounded up, so that waiting for it makes progress.
func (e *Engine) after(ns float64) time.Duration {
	if ns > float64(never-e.now)/2 {
		return never
	}
	return e.now + max(time.Duration(math.Ceil(ns)), 1)
}

// runLocked runs every active context at its rate.
func (e *Engine) runLocked(d time.Duration) {
	for _, c := range e.active {
		e.sampler.add(c.acct, c.queue.run(c.rate*float64(d)))
	}
	e.sampler.busy += d
}

// scheduleLocked wakes whoever has what he waits for, and sets the timer for the next one. Every public method that changes
// what runs ends with it.
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
	// A queue that runs empty changes the rates of all others, so the first end is looked at even if nobody waits for it.
	next := e.firstEndLocked()
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

// fire is the timer's call.
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
