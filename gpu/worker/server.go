package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

const (
	// threadDepth bounds the queue of one thread. The client sends one operation for each GPU at a time, and lists of processes that
	// go in between, so a full queue means that the peer is not the client.
	threadDepth = 64
	// maxThreads bounds the threads that the peer can start.
	maxThreads = 256
	// maxEventStreams bounds the streams of events.
	maxEventStreams = 8
	// closeGrace is how long the worker waits for running operations after its connection has ended.
	closeGrace = 2 * time.Second
	// writeTimeout bounds the write of one reply: the client always reads.
	writeTimeout = 10 * time.Second
)

// ErrThreadsStuck is returned by Serve when operations are still running after the connection has ended. The process
// should exit at once: nothing waits for them.
var ErrThreadsStuck = errors.New("operations are still inside the driver")

// Opener opens the driver. It runs on the node's thread, before the first operation.
type Opener func(ctx context.Context) (gpu.Driver, error)

// Dial connects a worker to the daemon that started it and sends the token.
func Dial(ctx context.Context, socket, token string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the daemon: %w", err)
	}
	if err := writeFrame(conn, hello{Protocol: protocol, Token: token}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot send the token to the daemon: %w", err)
	}
	return conn, nil
}

// Worker is the server end of a Client.
type Worker struct {
	// Open opens the driver.
	Open Opener
	// Unusable reports whether the driver cannot be used any more after this error, for example because it was reloaded.
	// The worker then ends instead of answering, and the client starts another one. nil means never.
	Unusable func(error) bool
	// Log must be set.
	Log *slog.Logger
}

// Serve runs the operations that it receives over conn until the peer closes it or ctx ends, then closes the driver. It
// owns conn. Each GPU has its own thread, so a GPU that hangs does not block the others.
func (w Worker) Serve(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &server{
		Worker:     w,
		conn:       conn,
		opened:     make(chan struct{}),
		gpuThreads: make(map[gpu.UUID]chan job),
		cancels:    make(map[uint64]context.CancelFunc),
	}
	// The end of ctx unblocks the reader.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	ended := s.startNode(ctx)
	err := s.read(ctx)
	cancel()
	conn.Close()
	close(s.node)
	for _, l := range s.gpuThreads {
		close(l)
	}
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
		return ErrThreadsStuck
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// server is one connection with its threads.
type server struct {
	Worker
	conn net.Conn

	// opened is closed when driver and openErr are set; they do not change afterwards.
	opened  chan struct{}
	driver  gpu.Driver
	openErr error

	// node and gpuThreads belong to the reader.
	node       chan job
	gpuThreads map[gpu.UUID]chan job

	events  atomic.Int32   // running streams
	running sync.WaitGroup // all threads except the node's

	// writeMu guards writes to conn.
	writeMu sync.Mutex

	// mu guards cancels.
	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
}

// job is one request with the context of its caller.
type job struct {
	ctx context.Context
	req request
}

// read passes every request to its thread until the connection ends.
func (s *server) read(ctx context.Context) error {
	in := bufio.NewReader(s.conn)
	for {
		var r request
		if err := readFrame(in, &r); err != nil {
			return err
		}
		if r.Op == opCancel {
			s.closeRequest(r.ID)
			continue
		}
		info, ok := operations[r.Op]
		if !ok {
			s.answer(r, nil, 0, &gpu.Error{Op: string(r.Op), GPU: r.GPU, Err: gpu.ErrInvalid})
			continue
		}
		j := job{ctx: s.openRequest(ctx, r), req: r}
		if err := s.dispatch(info, j); err != nil {
			s.closeRequest(r.ID)
			s.answer(r, nil, 0, &gpu.Error{Op: info.verb, GPU: r.GPU, Err: err})
		}
	}
}

// dispatch queues j for its thread. It never blocks: a thread that hangs must not stop the reader.
func (s *server) dispatch(info opInfo, j job) error {
	var l chan job
	switch info.thread {
	case threadEvents:
		if s.events.Add(1) > maxEventStreams {
			s.events.Add(-1)
			return fmt.Errorf("%w: too many streams of events", gpu.ErrInvalid)
		}
		l = s.startThread()
		l <- j
		close(l)
		return nil
	case threadNode:
		l = s.node
	case threadGPU:
		l = s.gpuThreads[j.req.GPU]
		if l == nil {
			if len(s.gpuThreads) >= maxThreads {
				return fmt.Errorf("%w: too many GPUs", gpu.ErrInvalid)
			}
			l = s.startThread()
			s.gpuThreads[j.req.GPU] = l
		}
	}
	select {
	case l <- j:
		return nil
	default:
		return fmt.Errorf("%w: too many operations are waiting", gpu.ErrTimeout)
	}
}

// startThread starts a goroutine with its own OS thread, because the vendor's library may keep state for each thread, and
// a hung call must block only this thread.
func (s *server) startThread() chan job {
	l := make(chan job, threadDepth)
	s.running.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		t := gpuThread{s: s, queue: l}
		for j, ok := t.next(); ok; j, ok = t.next() {
			s.execute(j, &t)
		}
	})
	return l
}

// startNode starts the thread of the node. It opens the driver, and closes it after all other threads have ended. The
// returned channel is closed at the end, or never after a hung call; the process then exits.
func (s *server) startNode(ctx context.Context) (ended <-chan struct{}) {
	s.node = make(chan job, threadDepth)
	done := make(chan struct{})
	go func() { // ends after all other threads, or with the process
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		s.driver, s.openErr = s.Open(ctx)
		close(s.opened)
		for j := range s.node {
			s.execute(j, nil)
		}
		s.running.Wait()
		if s.openErr != nil {
			return
		}
		if err := s.driver.Close(); err != nil {
			s.Log.Warn("cannot close the driver", "err", err)
		}
	}()
	return done
}

// execute runs one request and answers it. A reading of a GPU that yields lets requests of its thread in between.
func (s *server) execute(j job, t *gpuThread) {
	defer s.closeRequest(j.req.ID)
	<-s.opened
	info := operations[j.req.Op]
	if s.openErr != nil {
		s.answer(j.req, nil, 0, s.openErr)
		return
	}
	if err := j.ctx.Err(); err != nil {
		// The caller no longer waits: a change must not be made without the caller's knowledge.
		s.answer(j.req, nil, 0, &gpu.Error{Op: info.verb, GPU: j.req.GPU, Err: fmt.Errorf("%w: %w", gpu.ErrTimeout, err)})
		return
	}
	var others time.Duration
	if t != nil && info.yields {
		j.ctx = gpu.WithYield(j.ctx, func() { others += t.between() })
	}
	began := time.Now()
	result, err := s.call(j)
	if err != nil && s.Unusable != nil && s.Unusable(err) {
		s.Log.Warn("the driver cannot be used any more", "err", err)
		s.conn.Close() // the client uses the next worker
		return
	}
	s.answer(j.req, result, time.Since(began)-others, err)
}

// call calls the driver.
func (s *server) call(j job) (any, error) {
	ctx, r, d := j.ctx, j.req, s.driver
	switch r.Op {
	case OpNode:
		return d.Node(gpu.WithProgress(ctx, func(id gpu.UUID) { s.send(reply{ID: r.ID, Progress: id}) }))
	case OpSnapshot:
		return d.Snapshot(ctx, r.GPU)
	case OpProfiles:
		return d.Profiles(ctx, r.GPU)
	case OpMemory:
		return d.Memory(ctx, r.GPU)
	case OpProcesses:
		return d.Processes(ctx, r.GPU)
	case OpInstanceProcesses:
		a, err := decodeArgs[instanceProcessesArgs](r)
		if err != nil {
			return nil, err
		}
		return d.InstanceProcesses(ctx, r.GPU, a.GI)
	case OpUtilization:
		a, err := decodeArgs[utilizationArgs](r)
		if err != nil {
			return nil, err
		}
		samples, newest, err := d.Utilization(ctx, r.GPU, a.Since)
		return utilizationResult{samples, newest}, err
	case OpSeries:
		a, err := decodeArgs[utilizationArgs](r)
		if err != nil {
			return nil, err
		}
		return d.UtilizationSeries(ctx, r.GPU, a.Since)
	case OpInstanceUse:
		a, err := decodeArgs[instanceUseArgs](r)
		if err != nil {
			return nil, err
		}
		return d.InstanceUse(ctx, r.GPU, a.Instances)
	case OpNVLinks:
		return d.NVLinks(ctx, r.GPU)
	case OpMemoryLimit:
		a, err := decodeArgs[memoryLimitArgs](r)
		if err != nil {
			return nil, err
		}
		return d.MemoryLimit(ctx, r.GPU, a.Cgroup)
	case OpSetMemoryLimit:
		a, err := decodeArgs[memoryLimitArgs](r)
		if err != nil {
			return nil, err
		}
		return nil, d.SetMemoryLimit(ctx, r.GPU, a.Cgroup, a.Hard)
	case OpHealth:
		return d.Health(ctx, r.GPU)
	case OpSensors:
		return d.Sensors(ctx, r.GPU)
	case OpSetPowerLimit:
		a, err := decodeArgs[powerLimitArgs](r)
		if err != nil {
			return nil, err
		}
		return nil, d.SetPowerLimit(ctx, r.GPU, a.Milliwatts)
	case OpSetMIGMode:
		a, err := decodeArgs[migModeArgs](r)
		if err != nil {
			return nil, err
		}
		m, err := d.SetMIGMode(ctx, r.GPU, a.On)
		return encodeModeChange(m), err
	case OpCreateInstance:
		a, err := decodeArgs[gpu.NewInstance](r)
		if err != nil {
			return nil, err
		}
		return d.CreateInstance(ctx, r.GPU, a)
	case OpCompleteInstance:
		a, err := decodeArgs[instanceArgs](r)
		if err != nil {
			return nil, err
		}
		return d.CompleteInstance(ctx, r.GPU, a.GI, a.Compute)
	case OpDestroyInstance:
		a, err := decodeArgs[instanceArgs](r)
		if err != nil {
			return nil, err
		}
		return nil, d.DestroyInstance(ctx, r.GPU, a.GI)
	case OpSetComputeMode:
		a, err := decodeArgs[computeModeArgs](r)
		if err != nil {
			return nil, err
		}
		return nil, d.SetComputeMode(ctx, r.GPU, a.Mode)
	case OpEvents:
		defer s.events.Add(-1)
		return nil, d.Events(ctx, func(e gpu.Event) { s.send(reply{ID: r.ID, Event: &e}) })
	}
	return nil, &gpu.Error{Op: string(r.Op), Err: gpu.ErrInvalid}
}

// answer sends the result of r.
func (s *server) answer(r request, result any, elapsed time.Duration, err error) {
	out := reply{ID: r.ID, Duration: elapsed, Error: encodeError(err)}
	if result != nil && err == nil {
		body, encErr := json.Marshal(result)
		if encErr != nil {
			out.Error = encodeError(&gpu.Error{Op: string(r.Op), GPU: r.GPU, Err: fmt.Errorf("%w: %w", gpu.ErrUnknown, encErr)})
		}
		out.Result = body
	}
	s.send(out)
}

// send writes one reply. If this fails, it closes the connection, so that the client does not wait for the reply.
func (s *server) send(r reply) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // an error shows in the write
	if err := writeFrame(s.conn, r); err != nil {
		s.Log.Debug("cannot send the reply", "id", r.ID, "err", err)
		s.conn.Close()
	}
}

// openRequest returns the context of r, which closeRequest ends.
func (s *server) openRequest(ctx context.Context, r request) context.Context {
	var cancel func()
	if r.Timeout > 0 {
		ctx, cancel = within(ctx, r.Timeout)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels[r.ID] = cancel
	return ctx
}

// closeRequest ends the context of a request that has ended or was cancelled.
func (s *server) closeRequest(id uint64) {
	s.mu.Lock()
	cancel := s.cancels[id]
	delete(s.cancels, id)
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}
