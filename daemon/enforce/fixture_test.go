package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testGPU is the only GPU.
const testGPU gpu.UUID = "GPU-1"

const mib = 1 << 20

// limit is the GPU memory of a grant.
const limit = 100 * mib

// journal records what was done and reported, with the time since the start.
type journal struct {
	start time.Time

	mu    sync.Mutex // protects lines
	lines []string
}

func (j *journal) note(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprint(time.Since(j.start), " ", what))
}

func (j *journal) read() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// fakeDriver is a host with processes on one GPU.
type fakeDriver struct {
	gpu.Driver // What no test calls.
	sample     func() ([]gpu.Process, error)
	again      func() ([]gpu.Process, error) // what is measured before a stop; nil: as sample
	period     time.Duration                 // of the samples of a GPU that is always busy; 0: it has none
	lists      atomic.Int64                  // how often the processes' utilisation was read
}

func (d *fakeDriver) Node(context.Context) (gpu.NodeInfo, error) { return gpu.NodeInfo{}, nil }

func (d *fakeDriver) Snapshot(context.Context, gpu.UUID) (gpu.Snapshot, error) {
	list, err := d.sample()
	return gpu.Snapshot{Processes: list, Memory: d.memoryOf(list)}, err
}

func (d *fakeDriver) Memory(context.Context, gpu.UUID) (m gpu.Memory, err error) {
	list, err := d.sample()
	return d.memoryOf(list), err
}

func (d *fakeDriver) memoryOf(list []gpu.Process) gpu.Memory {
	m := gpu.Memory{Total: 1 << 40}
	seen := map[int]bool{}
	for _, p := range list {
		if !seen[p.PID] && p.Memory != nil {
			m.Used += *p.Memory
		}
		seen[p.PID] = true
	}
	m.Free = m.Total - m.Used
	return m
}

func (d *fakeDriver) Processes(ctx context.Context, _ gpu.UUID) ([]gpu.Process, error) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) > readTimeout && d.again != nil { // Before a signal.
		return d.again()
	}
	return d.sample()
}

func (d *fakeDriver) Utilization(context.Context, gpu.UUID, uint64) ([]gpu.UtilSample, uint64, error) {
	d.lists.Add(1)
	if d.period == 0 {
		return nil, 0, gpu.ErrNotSupported
	}
	return []gpu.UtilSample{{PID: unusedPID, SM: 50}, {PID: unusedPID + 1, SM: 50}}, uint64(time.Now().UnixMicro()), nil
}

func (d *fakeDriver) UtilizationSeries(_ context.Context, _ gpu.UUID, since uint64) (s gpu.Series, err error) {
	if d.period == 0 {
		return s, gpu.ErrNotSupported
	}
	now, period := uint64(time.Now().UnixMicro()), uint64(d.period.Microseconds())
	s.Newest = since
	for at := max(since, now-uint64(15*time.Second/time.Microsecond))/period*period + period; at <= now; at += period {
		s.Samples, s.Newest = append(s.Samples, gpu.SeriesSample{Time: at, Percent: 100}), at
	}
	return s, nil
}

// fakePort assigns processes to leases by pid. It has the state of the freezer too.
type fakePort struct {
	cgroup.Port // What no test calls.
	journal     *journal
	killed      func(ctx context.Context, id string)
	slow        time.Duration // of each thaw

	mu        sync.Mutex // protects the fields below
	freezeErr error      // of each freeze
	leaseOf   map[int]string
	frozen    map[string]map[cgroup.FreezeReason]time.Time // and until when
	froze     map[string]int                               // how often
	stopping  map[string]bool
}

func (p *fakePort) setFreezeError(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freezeErr = err
}

func (p *fakePort) ScopeOf(pid int) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, ok := p.leaseOf[pid]
	return id, ok
}

func (p *fakePort) Slices(context.Context) ([]cgroup.SliceState, error) { return nil, nil }

func (p *fakePort) Members(_ context.Context, id string) (out []cgroup.Process, err error) {
	p.journal.note("SIGTERM")
	p.mu.Lock()
	defer p.mu.Unlock()
	for pid, owner := range p.leaseOf {
		if owner != id {
			continue
		}
		if start, err := procfs.Start(pid); err == nil { // Else it has exited.
			out = append(out, cgroup.Process{PID: pid, Start: start})
		}
	}
	return out, nil
}

// WaitEmpty finds that no process ends by SIGTERM.
func (p *fakePort) WaitEmpty(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func (p *fakePort) KillScope(ctx context.Context, id string) error {
	p.journal.note("SIGKILL")
	p.killed(ctx, id)
	return nil
}

// fakeFreezer freezes leases of a fakePort, each for several reasons.
type fakeFreezer struct{ *fakePort }

func (f fakeFreezer) Ready() error { return nil }

func (f fakeFreezer) Freeze(_ context.Context, id string, reason cgroup.FreezeReason, d time.Duration) error {
	p := f.fakePort
	p.mu.Lock()
	defer p.mu.Unlock()
	p.froze[id]++
	if p.freezeErr != nil {
		return p.freezeErr
	}
	if p.stopping[id] && reason != cgroup.ForStop {
		return cgroup.ErrStopping
	}
	if len(p.frozen[id]) == 0 {
		p.frozen[id] = map[cgroup.FreezeReason]time.Time{}
		p.journal.note("freeze")
	}
	p.frozen[id][reason] = time.Now().Add(min(d, time.Hour))
	return nil
}

func (f fakeFreezer) Thaw(_ context.Context, id string, reason cgroup.FreezeReason) error {
	elapse(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	if delete(f.frozen[id], reason); f.frozen[id] != nil && len(f.frozen[id]) == 0 {
		f.thaw(id)
	}
	return nil
}

func (f fakeFreezer) Stopping(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopping[id] = true
	if len(f.frozen[id]) > 0 {
		f.thaw(id)
	}
	return nil
}

func (f fakeFreezer) Reasons(id string) []cgroup.FreezeReason {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.frozen[id]))
}

func (f fakeFreezer) Retain(_ context.Context, ids map[string]bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.frozen {
		if !ids[id] {
			f.thaw(id)
		}
	}
	return nil
}

func (p *fakePort) thaw(id string) {
	delete(p.frozen, id)
	p.journal.note("thaw")
}

func (p *fakePort) frozenLeases() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.frozen))
}

func (p *fakePort) freezeCounts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.froze)
}

func (p *fakePort) assign(pid int, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaseOf[pid] = id
}

// fakeLeases stops leases as package leases does.
type fakeLeases struct{ *fixture }

func (f fakeLeases) StopInBackground(l *lease.Lease, reason string) {
	ctx := f.tasks.Context()
	f.journal.note("stop " + l.ID + ": " + reason)
	f.tasks.Go(func() {
		if err := f.Table.Ending(l.ID, reason); err != nil {
			f.journal.note(err.Error())
		}
		if err := f.Stopper.Lease(ctx, l, stop.StopGrace, func(context.Context) { f.journal.note("notice") }); err != nil {
			f.journal.note(err.Error())
		}
		if err := f.Table.Ended(ctx, l.ID, reason); err != nil {
			f.journal.note(err.Error())
		}
	})
}

// fakeIsolation is an isolation that can be frozen.
type fakeIsolation struct{ leasetest.NoIsolation }

func (fakeIsolation) Isolate(context.Context, lease.Lease, lease.Process) (lease.IsolationResult, error) {
	return lease.IsolationResult{Status: api.IsolationStatus{Cgroup: "/red", Freeze: true}}, nil
}

// fixture is an enforcer with a lease of tenant red on a time-sliced GPU. It runs in a synctest bubble.
type fixture struct {
	*Enforcer
	journal     *journal
	port        *fakePort
	driver      *fakeDriver
	lease       string // the lease of red
	lines       int    // notices before the start
	ended       chan struct{}
	frozenAtEnd []string // which leases were frozen when Run returned
	end         context.CancelFunc
}

// newFixture makes a node that enforces. Each grant has the limit and this overuse.
func newFixture(t *testing.T, overuse string) *fixture {
	t.Helper()
	j := &journal{start: time.Now()}
	rep := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	w := &fixture{journal: j, driver: &fakeDriver{}, ended: make(chan struct{})}
	w.driver.sample = func() ([]gpu.Process, error) { return nil, nil }
	w.port = &fakePort{
		journal:  j,
		leaseOf:  map[int]string{},
		frozen:   map[string]map[cgroup.FreezeReason]time.Time{},
		stopping: map[string]bool{},
		froze:    map[string]int{},
		killed:   func(context.Context, string) {},
	}
	wake := loop.NewWake()
	table := leasetest.TableOf(
		t, lease.Config{Isolation: fakeIsolation{}, Changed: func(lease.Lease) { wake.Set() }}, "red", "part", os.Getuid(),
	)
	w.lease = table.Live()[0].ID
	table.Update(viewOf(overuse, new(api.Bytes(limit))))
	st := state.NewState(nil, false)
	observer := &observe.Observer{Driver: w.driver, Slices: w.port, HostRoot: t.TempDir(), Now: time.Now}
	observer.Observe(t.Context())
	attr := &attribution.Attribution{
		Reporter:    rep,
		State:       st,
		Port:        w.port,
		Follow:      cgroup.NewProcesses("a test"),
		Attachments: cgroup.NewAttachments(cgroup.AttachmentsOptions{}),
		Observer:    observer,
		Table:       table,
	}
	w.Enforcer = &Enforcer{
		Reporter:       rep,
		State:          st,
		Driver:         w.driver,
		Observer:       observer,
		Freezer:        fakeFreezer{w.port},
		Table:          table,
		Samples:        observe.NewSamples(),
		SampleInterval: func() time.Duration { return time.Second },
		Attribution:    attr,
		Stopper: &stop.Stopper{
			Reporter:     rep,
			Driver:       w.driver,
			Table:        table,
			Attribution:  attr,
			Freezer:      fakeFreezer{w.port},
			LeaseChanges: &stop.LeaseChanges{},
		},
		Wake:    wake,
		Shares:  Shares{GPUs: map[gpu.UUID]*Slicer{}},
		Tenants: FrozenTenants{RunDir: store.RunDir(t.TempDir()), Wake: loop.NewWake()},
	}
	w.Leases = fakeLeases{w}
	w.enforce("on", api.ModeExclusive) // No GPU time is scheduled in tests of GPU memory.
	return w
}

// viewOf is a GPU with a grant of red and one of blue, each with this overuse and GPU memory.
func viewOf(overuse string, memory *api.Bytes) lease.View {
	grace := api.Duration(2 * time.Second)
	grant := func(tenant string) lease.Grant {
		return lease.Grant{
			Tenant: tenant, Spec: api.GrantSpec{Name: "part", Timeslice: &api.ShareSpec{Share: 50, GPUMemory: memory}},
			Overuse: &api.OveruseSpec{GPUMemory: overuse, Grace: &grace},
		}
	}
	return lease.View{
		Generation: 2,
		GPUs:       []lease.GPUView{{UUID: testGPU, Mode: api.ModeTimeslice, Capacity: 1 << 30}},
		Grants:     []lease.Grant{grant("red"), grant("blue")},
	}
}

// enforce puts a spec in force.
func (w *fixture) enforce(enforce api.OnOff, mode string) {
	w.State.SetDesired(&state.Desired{
		Generation: 1, Spec: &api.Spec{Node: api.NodeSpec{Enforce: enforce}}, GPUs: map[gpu.UUID]*api.GPUSpec{testGPU: {Mode: mode}},
	})
}

// begin calls Run. Its events go to the journal.
func (w *fixture) begin(t *testing.T) {
	t.Helper()
	select {
	case <-w.Wake.C(): // The first sample is after an interval, not because of the leases of the test.
	default:
	}
	l, _ := w.Table.Get(w.lease)
	w.lines = len(l.Notices)
	sub, unsubscribe := w.Events.Subscribe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case e := <-sub.C:
				w.journal.note(e.Kind)
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() {
		defer close(w.ended)
		w.Run(ctx)
		w.frozenAtEnd = w.port.frozenLeases()
	}()
	w.end = func() {
		cancel()
		<-w.ended
		<-done
		unsubscribe()
	}
}

// runUntil lets time pass until so long after the start.
func (w *fixture) runUntil(at time.Duration) {
	elapse(time.Until(w.journal.start.Add(at)))
	synctest.Wait()
}

// elapse lets time of the bubble pass.
func elapse(d time.Duration) { time.Sleep(d) }

// on returns a process on the GPU.
func on(pid int, memory uint64) gpu.Process {
	return gpu.Process{PID: pid, Kind: gpu.ComputeProcess, Memory: &memory}
}

// startLease starts a lease of another tenant.
func (w *fixture) startLease(t *testing.T, tenant string) string {
	t.Helper()
	k, err := w.Table.Submit(lease.Request{Tenant: tenant, Member: []string{tenant}, Command: []string{"command"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Table.Start(t.Context(), k.ID(), lease.Process{PID: 1<<30 + 1, Start: 1}); err != nil {
		t.Fatal(err)
	}
	return k.ID()
}

// realProcess is a process that gets signals.
type realProcess struct {
	pid   int
	ended chan struct{} // closed when it has ended
	state *os.ProcessState
	kill  func()

	endless atomic.Bool // it did not end
}

const (
	endsOnTerm  = "echo; exec sleep 3600"
	ignoresTerm = "trap '' TERM; echo; exec sleep 3600"
)

// startScript starts a shell script and returns when it has printed a line. It is called outside of the bubble, because a
// process does not run in the bubble's time.
func startScript(t *testing.T, text string) *realProcess {
	t.Helper()
	cmd := exec.Command("sh", "-c", text)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Errorf("it does not start: %v", err)
	}
	r := &realProcess{pid: cmd.Process.Pid, ended: make(chan struct{}), kill: func() { _ = cmd.Process.Kill() }} // It may have exited.
	go func() {
		defer close(r.ended)
		_ = cmd.Wait() // It is stopped.
		r.state = cmd.ProcessState
	}()
	t.Cleanup(func() { r.kill(); <-r.ended })
	return r
}

// alive reports whether it runs.
func (r *realProcess) alive() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// endsSoon waits for its exit, for a time of the host: no time of the bubble passes meanwhile. After it did not end it waits no more.
func (r *realProcess) endsSoon() (ends bool) {
	if r.endless.Load() {
		return false
	}
	defer func() { r.endless.Store(!ends) }()
	fd, err := unix.PidfdOpen(r.pid, 0)
	if err != nil {
		return true // It was waited for.
	}
	defer func() { _ = unix.Close(fd) }() // Nothing is written through it.
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
	}
	return err == nil && n == 1
}

// endedBy waits for its exit, and returns the signal.
func (r *realProcess) endedBy() syscall.Signal {
	<-r.ended
	return r.state.Sys().(syscall.WaitStatus).Signal()
}

var errNoAnswer = errors.New("no answer")
