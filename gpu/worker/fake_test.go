package worker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

const (
	gpuA = gpu.UUID("GPU-aaaa")
	gpuB = gpu.UUID("GPU-bbbb")
)

// fakeNode is the hardware of all fake drivers of one test. It outlives workers, as hardware does.
type fakeNode struct {
	// hang blocks a call as a hung ioctl does: independent of its context, until the test releases it.
	hang func(op Op, id gpu.UUID) <-chan struct{}

	// lists is how many lists a reading of all instances has, each of listTime; it yields between them.
	lists    int
	listTime time.Duration

	mu      sync.Mutex // guards all below
	gpus    []gpu.UUID
	calls   []string
	openErr error
	events  []chan gpu.Event
	watched func() // called when a driver starts to wait for events
	opened  int
	closed  int
	failing error
}

func newFakeNode(gpus ...gpu.UUID) *fakeNode { return &fakeNode{gpus: gpus} }

func (n *fakeNode) enter(op Op, id gpu.UUID) error {
	n.mu.Lock()
	n.calls = append(n.calls, string(op)+" "+string(id))
	hang := n.hang
	n.mu.Unlock()
	if hang != nil {
		if ch := hang(op, id); ch != nil {
			<-ch
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failing
}

// readLists takes the time of the lists of a reading of all instances.
func (n *fakeNode) readLists(ctx context.Context) {
	for i := range n.lists {
		if yield := gpu.Yields(ctx); i > 0 && yield != nil {
			yield()
		}
		time.Sleep(n.listTime)
	}
}

// count returns how often op reached the hardware.
func (n *fakeNode) count(op Op, id gpu.UUID) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := 0
	for _, c := range n.calls {
		if c == string(op)+" "+string(id) {
			k++
		}
	}
	return k
}

// set changes the node under its lock.
func (n *fakeNode) set(f func(*fakeNode)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

// open returns an Opener of a driver that excludes some GPUs.
func (n *fakeNode) open(excluded ...gpu.UUID) Opener {
	return func(context.Context) (gpu.Driver, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.opened++
		if n.openErr != nil {
			return nil, n.openErr
		}
		return &fakeDriver{n: n, excluded: excluded}, nil
	}
}

// unusableCode is the code of an error after which the fake driver cannot be used.
const unusableCode = 1

func unusable(err error) bool {
	var e *gpu.Error
	return errors.As(err, &e) && e.Code == unusableCode
}

type fakeDriver struct {
	n        *fakeNode
	excluded []gpu.UUID
}

func (d *fakeDriver) Node(ctx context.Context) (gpu.NodeInfo, error) {
	info := gpu.NodeInfo{DriverVersion: "580.1"}
	d.n.mu.Lock()
	gpus := slices.Clone(d.n.gpus)
	d.n.mu.Unlock()
	for i, id := range gpus {
		if slices.Contains(d.excluded, id) {
			continue
		}
		gpu.ReportProgress(ctx, id)
		if err := d.n.enter(OpNode, id); err != nil {
			return info, err
		}
		info.GPUs = append(info.GPUs, gpu.Identity{UUID: id, Index: i, Minor: i})
	}
	return info, nil
}

func (d *fakeDriver) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	d.n.readLists(ctx)
	return gpu.Snapshot{Identity: gpu.Identity{UUID: id}}, d.n.enter(OpSnapshot, id)
}

func (d *fakeDriver) Profiles(_ context.Context, id gpu.UUID) (gpu.Profiles, error) {
	return gpu.Profiles{Width: 8}, d.n.enter(OpProfiles, id)
}

func (d *fakeDriver) Memory(_ context.Context, id gpu.UUID) (gpu.Memory, error) {
	return gpu.Memory{Total: 40 << 30}, d.n.enter(OpMemory, id)
}

func (d *fakeDriver) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	d.n.readLists(ctx)
	return []gpu.Process{{PID: 7}}, d.n.enter(OpProcesses, id)
}

func (d *fakeDriver) InstanceProcesses(_ context.Context, id gpu.UUID, gi uint32) ([]gpu.Process, error) {
	time.Sleep(d.n.listTime)
	return []gpu.Process{{PID: 7, GI: &gi}}, d.n.enter(OpInstanceProcesses, id)
}

func (d *fakeDriver) Utilization(_ context.Context, id gpu.UUID, since uint64) ([]gpu.UtilSample, uint64, error) {
	return []gpu.UtilSample{{PID: 7, Time: since + 1}}, since + 1, d.n.enter(OpUtilization, id)
}

func (d *fakeDriver) UtilizationSeries(_ context.Context, id gpu.UUID, since uint64) (gpu.Series, error) {
	return gpu.Series{Samples: []gpu.SeriesSample{{Time: since + 1, Percent: 30}}, Newest: since + 1}, d.n.enter(OpSeries, id)
}

func (d *fakeDriver) NVLinks(_ context.Context, id gpu.UUID) (gpu.NVLinks, error) {
	return gpu.NVLinks{Peers: []string{"0000:4e:00.0"}, Switches: 1, Unknown: 2, Down: 3}, d.n.enter(OpNVLinks, id)
}

func (d *fakeDriver) MemoryLimit(_ context.Context, id gpu.UUID, cgroup string) (gpu.MemoryLimit, error) {
	return gpu.MemoryLimit{Hard: new(uint64(len(cgroup))), Used: 5}, d.n.enter(OpMemoryLimit, id)
}

func (d *fakeDriver) SetMemoryLimit(_ context.Context, id gpu.UUID, cgroup string, hard *uint64) error {
	if cgroup == "/none" != (hard == nil) {
		return gpu.ErrInvalid
	}
	return d.n.enter(OpSetMemoryLimit, id)
}

func (d *fakeDriver) Health(_ context.Context, id gpu.UUID) (gpu.Health, error) {
	return gpu.Health{Temperature: new(71), Throttle: []string{}, Power: &gpu.Power{Limit: 300_000, Max: 400_000}}, d.n.enter(OpHealth, id)
}

func (d *fakeDriver) Sensors(_ context.Context, id gpu.UUID) (gpu.Sensors, error) {
	return gpu.Sensors{Temperature: new(71), Throttle: []string{}, Clocks: &gpu.Clocks{SM: 1410}}, d.n.enter(OpSensors, id)
}

func (d *fakeDriver) SetPowerLimit(_ context.Context, id gpu.UUID, milliwatts uint64) error {
	if milliwatts != 300_000 {
		return gpu.ErrInvalid
	}
	return d.n.enter(OpSetPowerLimit, id)
}

func (d *fakeDriver) SetMIGMode(_ context.Context, id gpu.UUID, on bool) (gpu.ModeChange, error) {
	return gpu.ModeChange{Pending: on, Minor: 3, Activation: gpu.ErrInUse}, d.n.enter(OpSetMIGMode, id)
}

func (d *fakeDriver) CreateInstance(_ context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error) {
	return gpu.Instance{ID: 9, ProfileID: want.ProfileID, Placement: want.Placement}, d.n.enter(OpCreateInstance, id)
}

func (d *fakeDriver) CompleteInstance(_ context.Context, id gpu.UUID, gi uint32, c []gpu.NewCompute) (gpu.Instance, error) {
	return gpu.Instance{ID: gi, Compute: make([]gpu.ComputeInstance, len(c))}, d.n.enter(OpCompleteInstance, id)
}

func (d *fakeDriver) DestroyInstance(_ context.Context, id gpu.UUID, gi uint32) error {
	return d.n.enter(OpDestroyInstance, id)
}

func (d *fakeDriver) SetComputeMode(_ context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	return d.n.enter(OpSetComputeMode, id)
}

func (d *fakeDriver) InstanceUse(_ context.Context, id gpu.UUID, instances []uint32) ([]gpu.InstanceUse, error) {
	return []gpu.InstanceUse{{GI: instances[0], Length: 10 * time.Second, Busy: new(37.5)}}, d.n.enter(OpInstanceUse, id)
}

func (d *fakeDriver) Events(ctx context.Context, f func(gpu.Event)) error {
	ch := make(chan gpu.Event)
	var watched func()
	d.n.set(func(n *fakeNode) { n.events, watched = append(n.events, ch), n.watched })
	if watched != nil {
		watched()
	}
	for {
		select {
		case e := <-ch:
			f(e)
		case <-ctx.Done():
			return &gpu.Error{Op: "watch events", Err: ctx.Err()}
		}
	}
}

func (d *fakeDriver) Close() error {
	d.n.set(func(n *fakeNode) { n.closed++ })
	return nil
}

// inProcess starts workers as goroutines of the test, each with its own connection. A killed worker loses its connection,
// as a killed process does, but a call that hangs in the fake hardware still hangs.
type inProcess struct {
	node *fakeNode
	// before, if set, runs before the worker and returns whether the worker should run.
	before func(n int) bool

	client *Client // set after its creation

	workers sync.WaitGroup

	mu    sync.Mutex // guards procs
	procs []*inProcessWorker
	argv  [][]string
}

type inProcessWorker struct {
	pid  int
	conn net.Conn
	done chan struct{}
}

func (p *inProcessWorker) PID() int              { return p.pid }
func (p *inProcessWorker) Done() <-chan struct{} { return p.done }
func (p *inProcessWorker) Kill() error           { return p.conn.Close() }

func (l *inProcess) Launch(_ context.Context, _ string, argv, _ []string) (Process, error) {
	clientEnd, workerEnd := net.Pipe()
	l.mu.Lock()
	w := &inProcessWorker{pid: 1000 + len(l.procs), conn: workerEnd, done: make(chan struct{})}
	l.procs = append(l.procs, w)
	l.argv = append(l.argv, argv)
	n := len(l.procs)
	l.mu.Unlock()
	token, excluded := flags(argv)
	l.workers.Go(func() {
		defer close(w.done)
		if l.before != nil && !l.before(n) {
			workerEnd.Close()
			return
		}
		if err := l.client.admit(hello{Protocol: protocol, Token: token}, clientEnd); err != nil {
			clientEnd.Close()
			return
		}
		_ = Worker{
			Open:     l.node.open(excluded...),
			Unusable: unusable,
			Log:      slog.New(slog.DiscardHandler),
		}.Serve(context.Background(), workerEnd)
	})
	return w, nil
}

func (l *inProcess) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.procs)
}

// last returns the newest worker.
func (l *inProcess) last() *inProcessWorker {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.procs[len(l.procs)-1]
}

// flags reads the token and the excluded GPUs from a worker's command line.
func flags(argv []string) (token string, excluded []gpu.UUID) {
	for i := 0; i+1 < len(argv); i++ {
		switch argv[i] {
		case "--token":
			token = argv[i+1]
		case "--exclude":
			excluded = append(excluded, gpu.UUID(argv[i+1]))
		}
	}
	return token, excluded
}

// newTestClient returns a client whose workers are goroutines. They end before the test ends.
func newTestClient(t *testing.T, n *fakeNode) (*Client, *inProcess) {
	t.Helper()
	l := &inProcess{node: n}
	c := newClient(Options{Command: []string{"worker"}, RunDir: "/nowhere", Launcher: l}, nil)
	l.client = c
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		l.workers.Wait()
	})
	return c, l
}

// hangOnce lets the first call of op on id hang until the test ends.
func hangOnce(t *testing.T, n *fakeNode, op Op, id gpu.UUID) {
	t.Helper()
	release := make(chan struct{})
	var once sync.Once
	n.set(func(n *fakeNode) {
		n.hang = func(o Op, g gpu.UUID) (ch <-chan struct{}) {
			if o == op && g == id {
				once.Do(func() { ch = release })
			}
			return ch
		}
	})
	t.Cleanup(func() { close(release) })
}

// hangAlways lets every call of op on id hang until release is called.
func hangAlways(n *fakeNode, op Op, id gpu.UUID) (release func()) {
	ch := make(chan struct{})
	n.set(func(n *fakeNode) {
		n.hang = func(o Op, g gpu.UUID) <-chan struct{} {
			if o == op && g == id {
				return ch
			}
			return nil
		}
	})
	return func() { close(ch) }
}

// testContext returns a context that bounds a test.
func testContext(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
