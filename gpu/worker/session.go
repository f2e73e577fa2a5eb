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

// Why a session ended under an operation. All are errWorkerEnded.
var (
	errWorkerEnded = errors.New("the worker has gone")
	errCrashed     = fmt.Errorf("%w: it ended by itself", errWorkerEnded)
	errAbandoned   = fmt.Errorf("%w: it was abandoned because of another operation", errWorkerEnded)
	errRetired     = fmt.Errorf("%w: it was replaced", errWorkerEnded)
	errUnsent      = fmt.Errorf("%w: before it was asked", errWorkerEnded)
)

// sendTimeout bounds the way of one request into the socket: the worker always reads.
const sendTimeout = 5 * time.Second

// maxCrashes is how many workers in a row die of operations on one GPU before it is left alone.
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
	ended    bool // pending is empty and stays so
	retiring bool // takes no more operations and ends with its last one
}

// pending is one operation that was sent.
type pending struct {
	id    uint64
	op    Op
	info  opInfo
	gpu   gpu.UUID
	began time.Time

	// timer calls overdue after within; nil without a deadline. The client's mu guards it.
	timer   *time.Timer
	timeout time.Duration

	// done is closed when reply and err are set.
	done  chan struct{}
	reply reply
	err   error

	events  *queue // for OpEvents
	suspect bool   // the worker's death is laid to this one

	// release gives the GPU's turn back; called here only once the caller has left. The client's mu guards left.
	release  func()
	detached bool

	// progress is the GPU that an operation on the node was at last; guarded by the client's mu.
	progress gpu.UUID
}

// send registers one operation with s and sends it. The outcome comes by done, within the given time.
func (c *Client) send(s *session, op Op, info opInfo, id gpu.UUID, args json.RawMessage, timeout time.Duration, suspect bool, release func()) *pending {
	p := &pending{op: op, info: info, gpu: id, began: time.Now(), timeout: timeout, done: make(chan struct{}), suspect: suspect, release: release}
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
		p.timer = time.AfterFunc(timeout, func() { c.overdue(s, p) })
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
	_ = s.conn.SetWriteDeadline(time.Now().Add(sendTimeout)) // an error shows in the write
	return writeFrame(s.conn, r)
}

// cancel tells the worker that nobody waits for p: what has not begun is not begun.
func (s *session) cancel(p *pending) {
	_ = s.write(request{ID: p.id, Op: opCancel}) // a broken connection shows in the reader
}

// detach marks p as having no caller, so that its outcome gives the turn back. false: p is over already.
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

// finishLocked gives p its outcome.
func (c *Client) finishLocked(s *session, p *pending, r reply, err error) {
	if p.timer != nil {
		p.timer.Stop()
	}
	delete(s.pending, p.id)
	p.reply, p.err = r, err
	close(p.done)
	if p.detached && p.release != nil {
		p.release()
	}
}

// receive reads what the worker answers until its connection ends.
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
			c.stats.answered(p.op, time.Since(p.began), r.Duration, r.Error != nil)
			delete(c.crashes, p.gpu)
			c.finishLocked(s, p, r, nil)
		}
		idle := s.retiring && len(s.pending) == 0
		c.mu.Unlock()
		if idle {
			s.conn.Close() // the worker exits by itself; the next read ends this loop
		}
	}
}

// dropLocked ends s and fails what is pending on it with err.
func (c *Client) dropLocked(s *session, err error) {
	s.ended = true
	if c.current == s {
		c.current = nil
	}
	for _, p := range s.pending {
		c.finishLocked(s, p, reply{}, err)
	}
}

// retireLocked lets s end with its last operation; the next operation starts another worker.
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
			c.unresponsive[p.gpu] = "the worker died of it again and again"
			c.o.Log.Error("workers die of this GPU, which is left alone", "gpu", p.gpu, "op", p.op)
		}
	}
	c.dropLocked(s, errCrashed)
	c.mu.Unlock()
	s.conn.Close()
	if crashed {
		c.stats.with(func(st *Stats) { st.Crashes++ })
		c.o.Log.Warn("the GPU worker ended by itself", "pid", s.proc.PID())
		c.kill(s.proc) // it may have closed its connection and live on
	}
}

// changeRunning tells whether a change of any GPU is under way. The driver holds a lock of the whole node over some changes, so
// readings of other GPUs wait for them: their time starts anew then, and it is the change's own deadline that counts.
func (s *session) changeRunning() bool {
	for _, q := range s.pending {
		if q.info.write {
			return true
		}
	}
	return false
}

// overdue abandons the worker that did not answer p in time, and its GPU with it.
func (c *Client) overdue(s *session, p *pending) {
	c.mu.Lock()
	if s.pending[p.id] != p {
		c.mu.Unlock()
		return // answered meanwhile
	}
	if !p.info.write && s.changeRunning() {
		p.timer.Reset(p.timeout)
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

// errDeadline tells our deadline from the driver's own timeout.
var errDeadline = errors.New("past the deadline")

// kill ends a worker without waiting for it.
func (c *Client) kill(p Process) {
	if err := p.Kill(); err != nil {
		c.o.Log.Warn("cannot kill the GPU worker", "pid", p.PID(), "err", err)
	}
}

// queue holds events between the reader, which must never block, and a consumer that may.
type queue struct {
	ready chan struct{} // holds one token when there may be something to take

	mu    sync.Mutex // guards items
	items []gpu.Event
}

// queueDepth bounds a queue. A GPU in trouble repeats itself: what is beyond is counted and dropped.
const queueDepth = 1024

func newQueue() *queue { return &queue{ready: make(chan struct{}, 1)} }

// put adds e. false: the queue is full and e is dropped.
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

// take removes all.
func (q *queue) take() []gpu.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.items
	q.items = nil
	return out
}

// wait waits for done or ctx and tells whether done came.
func wait(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
