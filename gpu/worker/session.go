package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// The reasons why a session ends during an operation. All wrap errWorkerEnded.
var (
	errWorkerEnded = errors.New("the worker ended")
	errCrashed     = fmt.Errorf("%w: it crashed or exited", errWorkerEnded)
	errAbandoned   = fmt.Errorf("%w: it was abandoned because of another operation", errWorkerEnded)
	errRetired     = fmt.Errorf("%w: it was replaced", errWorkerEnded)
	errUnsent      = fmt.Errorf("%w: the request was not sent", errWorkerEnded)
)

// sendTimeout bounds the write of one request: the worker always reads.
const sendTimeout = 5 * time.Second

// maxCrashes is how many consecutive workers may crash in operations on one GPU before the GPU is excluded.
const maxCrashes = 3

// session is one live worker.
type session struct {
	conn     net.Conn
	proc     Process
	excluded []gpu.UUID

	// writeMu guards writes to conn.
	writeMu sync.Mutex

	// The client's mu guards the rest.
	pending  map[uint64]*pending
	ended    bool // pending is empty and stays empty
	retiring bool // accepts no operations and ends after the last pending one
}

// pending is one operation that was sent.
type pending struct {
	id    uint64
	op    Op
	info  opInfo
	gpu   gpu.UUID
	began time.Time

	// timer calls overdue until the deadline; nil without one. The client's mu guards both.
	timer    *time.Timer
	deadline deadline
	timeout  time.Duration // the limit of deadline

	// done is closed when reply and err are set.
	done  chan struct{}
	reply reply
	err   error

	events  *queue // for OpEvents
	suspect bool   // a crash of the worker is attributed to this operation

	// release frees the GPU's slot. It is called here only after the caller is detached. The client's mu guards detached.
	release  func()
	detached bool

	use *slotUse // in which it runs; nil: it has no slot

	// progress is the GPU that an operation on the node accessed last; guarded by the client's mu.
	progress gpu.UUID
}

// send registers one operation with s and sends it. done is closed with the result, at the latest after timeout
// and deadlineGrace, both without the time in which this process was stopped.
func (c *Client) send(
	s *session, op Op, info opInfo, id gpu.UUID, args json.RawMessage, timeout time.Duration, suspect bool, use *slotUse, release func(),
) *pending {
	p := &pending{
		op:      op,
		info:    info,
		gpu:     id,
		began:   time.Now(),
		timeout: timeout,
		done:    make(chan struct{}),
		suspect: suspect,
		use:     use,
		release: release,
	}
	if op == OpEvents {
		p.events = newQueue()
	}
	c.mu.Lock()
	c.nextID++
	p.id = c.nextID
	if s.ended || s.retiring {
		p.err = errUnsent
		close(p.done)
		c.mu.Unlock()
		return p
	}
	s.pending[p.id] = p
	if timeout > 0 {
		p.deadline = deadline{left: timeout, last: p.began}
		p.timer = time.AfterFunc(p.deadline.next(), func() { c.overdue(s, p) })
	}
	c.mu.Unlock()
	c.stats.sent(info)
	if err := s.write(request{ID: p.id, Op: op, GPU: id, Timeout: timeout, Args: args}); err != nil {
		c.lost(s)
	}
	return p
}

// write sends one request.
func (s *session) write(r request) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(sendTimeout)) // the write returns the error
	return writeFrame(s.conn, r)
}

// cancel notifies the worker that no caller waits for p. The worker does not start it if it has not started yet.
func (s *session) cancel(p *pending) {
	_ = s.write(request{ID: p.id, Op: opCancel}) // the reader notices a broken connection
}

// detach marks p as having no caller, so that its end frees the slot. It returns false if p has already ended.
func (c *Client) detach(p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-p.done:
		return false
	default:
	}
	p.detached = true
	return true
}

// finishLocked ends p with a result.
func (c *Client) finishLocked(s *session, p *pending, r reply, err error) {
	if p.timer != nil {
		p.timer.Stop()
	}
	delete(s.pending, p.id)
	p.reply, p.err = r, err
	if p.use != nil {
		p.use.lengthenLocked(p)
	}
	close(p.done)
	if p.detached && p.release != nil {
		p.release()
	}
}

// receive reads replies until the worker's connection ends.
func (c *Client) receive(s *session) {
	in := bufio.NewReader(s.conn)
	for {
		var r reply
		if err := readFrame(in, &r); err != nil {
			c.lost(s)
			return
		}
		c.mu.Lock()
		p := s.pending[r.ID]
		switch {
		case p == nil:
		case r.Progress != "":
			p.progress = r.Progress
		case r.Event != nil:
			if p.events == nil || !p.events.put(*r.Event) {
				c.stats.with(func(st *Stats) { st.EventsDropped++ })
			}
		default:
			c.stats.answered(p.op, p.info, p.gpu, time.Since(p.began), r.Duration, r.Error != nil)
			delete(c.crashes, p.gpu)
			c.finishLocked(s, p, r, nil)
		}
		idle := s.retiring && len(s.pending) == 0
		c.mu.Unlock()
		if idle {
			s.conn.Close() // the worker exits then; the next read ends this loop
		}
	}
}

// dropLocked ends s and fails its pending operations with err.
func (c *Client) dropLocked(s *session, err error) {
	s.ended = true
	if c.current == s {
		c.current = nil
	}
	for _, p := range s.pending {
		c.finishLocked(s, p, reply{}, err)
	}
}

// retireLocked lets s end after its last operation; the next operation starts another worker.
func (c *Client) retireLocked(s *session) {
	s.retiring = true
	if c.current == s {
		c.current = nil
	}
	for _, p := range s.pending {
		if p.events != nil {
			c.finishLocked(s, p, reply{}, errRetired)
		}
	}
	if len(s.pending) == 0 {
		s.ended = true
		s.conn.Close()
	}
}

// lost ends a session whose connection broke.
func (c *Client) lost(s *session) {
	c.mu.Lock()
	if s.ended {
		c.mu.Unlock()
		s.conn.Close()
		return
	}
	crashed := !s.retiring || len(s.pending) > 0
	for _, p := range s.pending {
		if !p.suspect || p.gpu == "" {
			continue
		}
		if c.crashes[p.gpu]++; c.crashes[p.gpu] >= maxCrashes {
			delete(c.crashes, p.gpu)
			c.unresponsive[p.gpu] = "workers crashed repeatedly in operations on it"
			c.o.Log.Error("workers crash repeatedly in operations on this GPU: it is excluded", "gpu", p.gpu, "op", p.op)
		}
	}
	c.dropLocked(s, errCrashed)
	c.mu.Unlock()
	s.conn.Close()
	if crashed {
		c.stats.with(func(st *Stats) { st.Crashes++ })
		c.o.Log.Warn("the GPU worker crashed or exited", "pid", s.proc.PID())
		c.kill(s.proc) // it may have closed its connection without exiting
	}
}

// changeRunning reports whether a change of any GPU is running. During some changes the driver holds a lock for the whole
// node, so readings of other GPUs wait: their time starts again, and the deadline of the change applies.
func (s *session) changeRunning() bool {
	for _, q := range s.pending {
		if q.info.write {
			return true
		}
	}
	return false
}

// overdue counts the time of p. At the deadline it abandons the worker that did not answer and excludes the GPU.
func (c *Client) overdue(s *session, p *pending) {
	c.mu.Lock()
	if s.pending[p.id] != p {
		c.mu.Unlock()
		return // answered in the meantime
	}
	now := time.Now()
	over := p.deadline.count(now)
	if over && unread(s.conn) { // perhaps the answer
		over = !p.deadline.extend()
	}
	if over && !p.info.write && s.changeRunning() {
		p.deadline, over = deadline{left: p.timeout, last: now}, false
	}
	if !over {
		p.timer.Reset(p.deadline.next())
		c.mu.Unlock()
		return
	}
	id := p.gpu
	if id == "" {
		id = p.progress
	}
	if id != "" {
		c.unresponsive[id] = "the driver did not answer in time"
	} else {
		c.hungStarts++
	}
	c.finishLocked(s, p, reply{}, fmt.Errorf("%w: %w", gpu.ErrTimeout, errDeadline))
	c.dropLocked(s, errAbandoned)
	c.mu.Unlock()
	c.stats.with(func(st *Stats) { st.Timeouts++ })
	c.o.Log.Error("the GPU driver does not answer: the worker is abandoned", "op", p.op, "gpu", id, "pid", s.proc.PID())
	s.conn.Close()
	c.kill(s.proc)
}

// errDeadline distinguishes the client's deadline from the driver's own timeout.
var errDeadline = errors.New("past the deadline")

// kill kills a worker without waiting for its end.
func (c *Client) kill(p Process) {
	if err := p.Kill(); err != nil {
		c.o.Log.Warn("cannot kill the GPU worker", "pid", p.PID(), "err", err)
	}
}

// queue stores events between the reader, which must not block, and a consumer that may block.
type queue struct {
	ready chan struct{} // has one token when there may be events

	mu    sync.Mutex // guards items
	items []gpu.Event
}

// queueDepth bounds a queue. A failing GPU repeats its events: further ones are counted and dropped.
const queueDepth = 1024

func newQueue() *queue { return &queue{ready: make(chan struct{}, 1)} }

// put adds e. It returns false if the queue is full and e is dropped.
func (q *queue) put(e gpu.Event) bool {
	q.mu.Lock()
	full := len(q.items) >= queueDepth
	if !full {
		q.items = append(q.items, e)
	}
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return !full
}

// take removes and returns all events.
func (q *queue) take() []gpu.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.items
	q.items = nil
	return out
}

// wait waits for done or ctx and reports whether done was closed.
func wait(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
