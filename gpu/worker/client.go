package worker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
)

// ErrClosed is the error of operations on a closed client.
var ErrClosed = errors.New("the driver is closed")

// socketName is the client's socket in the run directory.
const socketName = "nvml.sock"

// Options configures a Client.
type Options struct {
	// Command is the worker's binary with leading arguments; flags are added to it.
	Command []string
	// Env is the complete environment of the worker.
	Env []string
	// RunDir is the directory of the socket; it must exist.
	RunDir string
	// Library and HostRoot are passed to the worker if they are not empty.
	Library  string
	HostRoot string
	// Launcher starts the worker processes.
	Launcher Launcher
	// Deadlines bound the operations.
	Deadlines Deadlines
	// Log receives starts, crashes and unresponsive GPUs; nil discards them.
	Log *slog.Logger
}

// Client is gpu.Driver with the driver in a worker process. The first operation starts the worker.
//
// A GPU is unresponsive after an operation exceeds its deadline: the worker is killed and replaced by one that excludes
// the GPU, and operations on the GPU fail with gpu.ErrTimeout until Retry. Running operations of other GPUs are sent
// again if they only read. If they change something, they fail with gpu.ErrTimeout: the caller must read back what was
// done. The same applies when the worker crashes. A GPU on which workers crash repeatedly is unresponsive too. After two
// consecutive workers hang at start, every operation fails with gpu.ErrStuck until Retry.
type Client struct {
	o     Options
	ln    net.Listener // nil where a test passes connections
	stats *recorder

	// ctx ends with Close, which waits for goroutines.
	ctx        context.Context
	stop       context.CancelFunc
	goroutines sync.WaitGroup

	// suspectSlot is held by at most one operation that may be the cause of crashes.
	suspectSlot chan struct{}

	// mu guards all fields below, and those fields of session and pending whose comments name it.
	mu           sync.Mutex
	current      *session                   // the worker that accepts operations
	live         map[*session]bool          // all with a connection, including retired ones
	starting     *startAttempt              // a worker that is being started
	awaited      map[string]chan<- net.Conn // by token: the start that waits for the worker
	slots        map[gpu.UUID]*slot         // "" is that of the node
	unresponsive map[gpu.UUID]string        // GPUs excluded until Retry, with the reason
	crashes      map[gpu.UUID]int           // consecutive workers that crashed in an operation on this GPU
	lastKnown    map[gpu.UUID]gpu.Identity  // as last read
	hungStarts   int                        // consecutive workers that hung at start
	failedStarts int                        // consecutive starts that failed otherwise
	startError   error                      // of the last start
	retryAt      time.Time                  // no start before this time
	nextID       uint64
	parked       bool // no worker is started until Unpark
	closed       bool
}

var _ gpu.Driver = (*Client)(nil)

// New creates the socket. The first operation starts the first worker.
func New(o Options) (*Client, error) {
	if len(o.Command) == 0 || o.Launcher == nil {
		return nil, errors.New("cannot create the driver client: no worker command or no launcher")
	}
	path := filepath.Join(o.RunDir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot remove the old worker socket: %w", err)
	}
	// The file of a socket has its mode from its start: no other user can connect.
	own := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		return errors.Join(c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }), failed)
	}}
	ln, err := own.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot create the worker socket: %w", err)
	}
	return newClient(o, ln), nil
}

// newClient returns a client that accepts workers on ln.
func newClient(o Options, ln net.Listener) *Client {
	o.Deadlines = o.Deadlines.withDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		o: o, ln: ln, stats: newRecorder(), ctx: ctx, stop: stop,
		live:         make(map[*session]bool),
		awaited:      make(map[string]chan<- net.Conn),
		slots:        make(map[gpu.UUID]*slot),
		suspectSlot:  make(chan struct{}, 1),
		unresponsive: make(map[gpu.UUID]string),
		crashes:      make(map[gpu.UUID]int),
		lastKnown:    make(map[gpu.UUID]gpu.Identity),
	}
	if ln != nil {
		c.goroutines.Go(c.accept)
	}
	return c
}

// Close ends the worker and fails running operations with ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	live := slices.Collect(maps.Keys(c.live))
	for _, s := range live {
		c.dropLocked(s, ErrClosed)
	}
	c.mu.Unlock()
	c.stop()
	var err error
	if c.ln != nil {
		err = c.ln.Close() // removes the socket too
	}
	for _, s := range live {
		s.conn.Close() // the worker exits then
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace+time.Second)
	defer cancel()
	for _, s := range live {
		if !wait(ctx, s.proc.Done()) {
			c.kill(s.proc)
		}
	}
	c.goroutines.Wait()
	return err
}

// Status is the state of the worker.
type Status struct {
	PID          int        `json:"pid"`                    // of the live worker, 0 when there is none
	Unresponsive []gpu.UUID `json:"unresponsive,omitempty"` // sorted
	Stuck        bool       `json:"stuck,omitempty"`
	Parked       bool       `json:"parked,omitempty"` // none is started, because of Park
	// Failure is the error of the last start; empty when it succeeded.
	Failure string `json:"failure,omitempty"`
}

// Status returns the state of the worker. It sends no request to the worker and never blocks.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := Status{Unresponsive: c.unresponsiveLocked(), Stuck: c.stuckLocked() && !c.parked, Parked: c.parked}
	if c.current != nil {
		st.PID = c.current.proc.PID()
	}
	if c.startError != nil && !c.parked {
		st.Failure = c.startError.Error()
	}
	return st
}

// Stats reads the counters.
func (c *Client) Stats() Stats { return c.stats.snapshot() }

// ReadingTime is how long readings of one GPU were inside the driver since the client was created. It never blocks.
func (c *Client) ReadingTime(id gpu.UUID) time.Duration { return c.stats.readings(id) }

// Retry tries an unresponsive GPU, or the stuck driver, again: the worker is replaced by one that accesses the GPU, and
// the GPU is read. An empty id means the node. The error is that of the reading. If it hangs, the GPU is unresponsive
// again.
func (c *Client) Retry(ctx context.Context, id gpu.UUID) error {
	c.mu.Lock()
	c.hungStarts, c.failedStarts, c.startError, c.retryAt = 0, 0, nil, time.Time{}
	delete(c.crashes, id)
	delete(c.unresponsive, id) // the next operation replaces a worker that excludes it
	c.mu.Unlock()
	if id == "" {
		_, err := c.Node(ctx)
		return err
	}
	_, err := c.Snapshot(ctx, id)
	return err
}

// Node implements gpu.Driver. An unresponsive GPU stays in the list with its last known identity and an Error.
func (c *Client) Node(ctx context.Context) (gpu.NodeInfo, error) {
	c.mu.Lock()
	before := maps.Clone(c.unresponsive)
	c.mu.Unlock()
	info, err := call[gpu.NodeInfo](ctx, c, OpNode, "", nil)
	if err != nil {
		return info, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rememberLocked(info.GPUs)
	for id, why := range before {
		// A retry started during the call: the worker that answered may still exclude this GPU.
		if _, still := c.unresponsive[id]; !still && !slices.ContainsFunc(info.GPUs, func(g gpu.Identity) bool { return g.UUID == id }) {
			info.GPUs = append(info.GPUs, c.lastKnownLocked(id, why+"; a retry is running"))
		}
	}
	for id, why := range c.unresponsive {
		was := c.lastKnownLocked(id, why+"; excluded until 'gpushare gpu retry'")
		if i := slices.IndexFunc(info.GPUs, func(g gpu.Identity) bool { return g.UUID == id }); i >= 0 {
			info.GPUs[i] = was
		} else {
			info.GPUs = append(info.GPUs, was)
		}
	}
	slices.SortStableFunc(info.GPUs, func(a, b gpu.Identity) int { return a.Index - b.Index })
	return info, nil
}

// lastKnownLocked returns the last known identity of a GPU that the worker does not list, with the reason.
func (c *Client) lastKnownLocked(id gpu.UUID, why string) gpu.Identity {
	was, ok := c.lastKnown[id]
	if !ok {
		was = gpu.Identity{UUID: id, Index: -1, Minor: -1, NUMANode: -1}
	}
	was.Error = why
	return was
}

// Snapshot implements gpu.Driver.
func (c *Client) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	return call[gpu.Snapshot](ctx, c, OpSnapshot, id, nil)
}

// Profiles implements gpu.Driver.
func (c *Client) Profiles(ctx context.Context, id gpu.UUID) (gpu.Profiles, error) {
	return call[gpu.Profiles](ctx, c, OpProfiles, id, nil)
}

// Memory implements gpu.Driver.
func (c *Client) Memory(ctx context.Context, id gpu.UUID) (gpu.Memory, error) {
	return call[gpu.Memory](ctx, c, OpMemory, id, nil)
}

// Processes implements gpu.Driver.
func (c *Client) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	return call[[]gpu.Process](ctx, c, OpProcesses, id, nil)
}

// InstanceProcesses implements gpu.Driver.
func (c *Client) InstanceProcesses(ctx context.Context, id gpu.UUID, gi uint32) ([]gpu.Process, error) {
	return call[[]gpu.Process](ctx, c, OpInstanceProcesses, id, instanceProcessesArgs{gi})
}

// Utilization implements gpu.Driver.
func (c *Client) Utilization(ctx context.Context, id gpu.UUID, since uint64) ([]gpu.UtilSample, uint64, error) {
	r, err := call[utilizationResult](ctx, c, OpUtilization, id, utilizationArgs{since})
	return r.Samples, r.Newest, err
}

// UtilizationSeries implements gpu.Driver.
func (c *Client) UtilizationSeries(ctx context.Context, id gpu.UUID, since uint64) (gpu.Series, error) {
	return call[gpu.Series](ctx, c, OpSeries, id, utilizationArgs{since})
}

// InstanceUse implements gpu.Driver.
func (c *Client) InstanceUse(ctx context.Context, id gpu.UUID, instances []uint32) ([]gpu.InstanceUse, error) {
	return call[[]gpu.InstanceUse](ctx, c, OpInstanceUse, id, instanceUseArgs{instances})
}

// NVLinks implements gpu.Driver.
func (c *Client) NVLinks(ctx context.Context, id gpu.UUID) (gpu.NVLinks, error) {
	return call[gpu.NVLinks](ctx, c, OpNVLinks, id, nil)
}

// MemoryLimit implements gpu.Driver.
func (c *Client) MemoryLimit(ctx context.Context, id gpu.UUID, cgroup string) (gpu.MemoryLimit, error) {
	return call[gpu.MemoryLimit](ctx, c, OpMemoryLimit, id, memoryLimitArgs{Cgroup: cgroup})
}

// SetMemoryLimit implements gpu.Driver.
func (c *Client) SetMemoryLimit(ctx context.Context, id gpu.UUID, cgroup string, hard *uint64) error {
	_, err := c.do(ctx, OpSetMemoryLimit, id, memoryLimitArgs{cgroup, hard})
	return err
}

// Health implements gpu.Driver.
func (c *Client) Health(ctx context.Context, id gpu.UUID) (gpu.Health, error) {
	return call[gpu.Health](ctx, c, OpHealth, id, nil)
}

// Sensors implements gpu.Driver.
func (c *Client) Sensors(ctx context.Context, id gpu.UUID) (gpu.Sensors, error) {
	return call[gpu.Sensors](ctx, c, OpSensors, id, nil)
}

// SetPowerLimit implements gpu.Driver.
func (c *Client) SetPowerLimit(ctx context.Context, id gpu.UUID, milliwatts uint64) error {
	_, err := c.do(ctx, OpSetPowerLimit, id, powerLimitArgs{milliwatts})
	return err
}

// SetMIGMode implements gpu.Driver.
func (c *Client) SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (gpu.ModeChange, error) {
	m, err := call[modeChange](ctx, c, OpSetMIGMode, id, migModeArgs{on})
	return m.decode(), err
}

// CreateInstance implements gpu.Driver.
func (c *Client) CreateInstance(ctx context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error) {
	return call[gpu.Instance](ctx, c, OpCreateInstance, id, want)
}

// CompleteInstance implements gpu.Driver.
func (c *Client) CompleteInstance(ctx context.Context, id gpu.UUID, gi uint32, compute []gpu.NewCompute) (gpu.Instance, error) {
	return call[gpu.Instance](ctx, c, OpCompleteInstance, id, instanceArgs{gi, compute})
}

// DestroyInstance implements gpu.Driver.
func (c *Client) DestroyInstance(ctx context.Context, id gpu.UUID, gi uint32) error {
	_, err := c.do(ctx, OpDestroyInstance, id, instanceArgs{GI: gi})
	return err
}

// SetComputeMode implements gpu.Driver.
func (c *Client) SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	_, err := c.do(ctx, OpSetComputeMode, id, computeModeArgs{mode})
	return err
}

// Events implements gpu.Driver. When a worker is replaced, it continues with the next one; events in between are lost. It
// returns when ctx ends, the client is closed, no worker starts or workers crash repeatedly in this operation.
func (c *Client) Events(ctx context.Context, f func(gpu.Event)) error {
	info := operations[OpEvents]
	for crashes := 0; ; {
		s, err := c.session(ctx, info, "")
		if err != nil {
			return err
		}
		began := time.Now()
		err = c.stream(ctx, s, c.send(s, OpEvents, info, "", nil, 0, false, nil, nil), f)
		if !errors.Is(err, errWorkerEnded) {
			return err
		}
		if !errors.Is(err, errCrashed) || time.Since(began) > maxRestartPause {
			crashes = 0
			continue
		}
		if crashes++; crashes >= maxCrashes {
			return c.fail(info, "", fmt.Errorf("%w: %w, repeatedly", gpu.ErrUnknown, err))
		}
		pause := time.NewTimer(minRestartPause << crashes)
		select {
		case <-pause.C:
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
		pause.Stop()
	}
}

// stream calls f for the events of one worker. After errWorkerEnded the caller uses another worker.
func (c *Client) stream(ctx context.Context, s *session, cl *pending, f func(gpu.Event)) error {
	for {
		for _, e := range cl.events.take() {
			f(e)
		}
		select {
		case <-cl.events.ready:
		case <-cl.done:
			switch {
			case errors.Is(cl.err, errWorkerEnded):
				return cl.err
			case cl.err != nil:
				return c.fail(cl.info, "", cl.err)
			case cl.reply.Error != nil:
				return cl.reply.Error.decode()
			}
			return c.fail(cl.info, "", gpu.ErrUnknown) // a stream ends with an error
		case <-ctx.Done():
			s.cancel(cl)
			return c.fail(cl.info, "", ctx.Err())
		}
	}
}

// call runs one operation and decodes its result.
func call[T any](ctx context.Context, c *Client, op Op, id gpu.UUID, args any) (T, error) {
	var v T
	body, err := c.do(ctx, op, id, args)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(body, &v); err != nil {
		info := operations[op]
		return v, c.fail(info, id, fmt.Errorf("%w: %w", gpu.ErrUnknown, err))
	}
	return v, nil
}

// do runs one operation: it waits for the GPU's slot and sends the request to the worker. If the worker ends during an
// operation that only reads, it sends the request to the next worker.
func (c *Client) do(ctx context.Context, op Op, id gpu.UUID, args any) (json.RawMessage, error) {
	info := operations[op]
	var body json.RawMessage
	if args != nil {
		b, err := json.Marshal(args)
		if err != nil {
			return nil, c.fail(info, id, fmt.Errorf("%w: %w", gpu.ErrInvalid, err))
		}
		body = b
	}
	t, leave, err := c.slot(id).take(ctx, info)
	if err != nil {
		return nil, c.fail(info, id, err)
	}
	suspect := false // this operation holds suspectSlot
	release := func() {
		if suspect {
			<-c.suspectSlot
		}
		leave()
	}
	for crashes := 0; ; {
		if !suspect && (crashes > 0 || c.suspected(id)) {
			// One of several operations crashed the worker. The suspected ones run one at a time, so that the one that
			// crashes workers does not fail the others.
			select {
			case c.suspectSlot <- struct{}{}:
				suspect = true
			case <-ctx.Done():
				release()
				return nil, c.fail(info, id, ctx.Err())
			}
		}
		s, err := c.session(ctx, info, id)
		if err != nil {
			release()
			return nil, err
		}
		cl := c.send(s, op, info, id, body, info.timeout(c.o.Deadlines), suspect, t, release)
		if !c.await(ctx, t, cl) && c.detach(cl) {
			s.cancel(cl)
			return nil, c.fail(info, id, ctx.Err())
		}
		again := false
		switch {
		case errors.Is(cl.err, errUnsent), errors.Is(cl.err, errWorkerEnded) && !errors.Is(cl.err, errCrashed) && !info.write:
			again = true
		case errors.Is(cl.err, errCrashed) && !info.write:
			crashes++
			again = crashes < 2
		}
		if again {
			continue
		}
		release()
		switch {
		case cl.err == nil && cl.reply.Error != nil:
			return nil, cl.reply.Error.decode()
		case cl.err == nil:
			return cl.reply.Result, nil
		case !errors.Is(cl.err, errWorkerEnded):
			return nil, c.fail(info, id, cl.err)
		case info.write:
			return nil, c.fail(info, id, fmt.Errorf("%w: %w; the operation may have been carried out", gpu.ErrTimeout, cl.err))
		default:
			return nil, c.fail(info, id, fmt.Errorf("%w: %w, twice", gpu.ErrUnknown, cl.err))
		}
	}
}

// suspected reports whether a worker crashed in the last operation on a GPU.
func (c *Client) suspected(id gpu.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.crashes[id] > 0
}

// fail returns the error of one operation. An exceeded deadline of the caller counts as a timeout.
func (c *Client) fail(info opInfo, id gpu.UUID, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, gpu.ErrTimeout) {
		err = fmt.Errorf("%w: %w", gpu.ErrTimeout, err)
	}
	return &gpu.Error{Op: info.verb, GPU: id, Err: err}
}

// rememberLocked stores the identities of the GPUs, for when one does not answer.
func (c *Client) rememberLocked(gpus []gpu.Identity) {
	for _, g := range gpus {
		if g.UUID != "" && g.Error == "" {
			c.lastKnown[g.UUID] = g
		}
	}
}

// unresponsiveLocked lists the unresponsive GPUs in order.
func (c *Client) unresponsiveLocked() []gpu.UUID {
	var out []gpu.UUID
	for id := range c.unresponsive {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// newToken returns a token with which a worker proves that this client started it.
func newToken() string { return rand.Text() }
