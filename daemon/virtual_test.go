package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/host"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/settings"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/hostroot"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/mps/detached"
	"github.com/gpushare/gpushare/test/scenarios"
)

// virtual is a virtual node with the whole daemon in this process: the real store on a disk, the real planners, engine and
// handlers. fakeWorker replaces the worker process, and slicesInMemory the cgroups of the kernel. Inside a bubble of
// testing/synctest its time is virtual too.
type virtual struct {
	*testing.T
	node       *gpusim.Node
	ids        []gpu.UUID
	port       *slicesInMemory
	root       string // of the host
	files      *hostroot.Root
	dir        string // of the daemon; another one in each run after a kill
	log        *bytes.Buffer
	violations []string // of the invariants that hold at every moment
	concurrent overlap

	specFile string                 // of the settings
	passed   atomic.Pointer[leftAt] // the request that counts each call of the driver and of the cgroups, and each time that is recorded; nil: none does

	clientExited func() bool // the process in use has exited; nil: there is none that can
	closeContext func()      // what the kernel does then: it closes the context of the process

	unknownWhenLost bool // the driver reports only the UUID of a GPU that was lost before the daemon started

	*Daemon    // the running one
	fakeWorker *fakeWorker
	stop       context.CancelFunc
	runs       int
}

// newVirtual makes a node of boards without NVLinks.
func newVirtual(t *testing.T, latency map[string]time.Duration, boards ...scenarios.Board) *virtual {
	t.Helper()
	return newVirtualOf(t, virtualConfig(t, latency, boards...))
}

// virtualDriver is the version of the driver of these nodes: one that reports profiles only while MIG mode is on. The nodes of
// test/node have a newer one.
const virtualDriver = "550.163.01"

func virtualConfig(t *testing.T, latency map[string]time.Duration, boards ...scenarios.Board) gpusim.Config {
	t.Helper()
	cfg := gpusim.Config{
		DriverVersion: virtualDriver, CUDAVersion: 12040, Seed: "faults", ContextMemory: 300 << 20, Latency: latency,
	}
	for i, b := range boards {
		m, err := nodefile.Model(b.Model)
		if err != nil {
			t.Fatal(err)
		}
		cfg.GPUs = append(cfg.GPUs, gpusim.GPUConfig{Model: m, MIG: b.MIG, PCI: fmt.Sprintf("0000:%02x:00.0", 7+i)})
	}
	return cfg
}

// newVirtualOf makes a node, on tmpfs if the host has it, because every run writes the state many times.
func newVirtualOf(t *testing.T, cfg gpusim.Config) *virtual {
	t.Helper()
	base, err := os.MkdirTemp("/dev/shm", "gpushare-test-")
	if err != nil {
		base = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	w := &virtual{T: t, root: filepath.Join(base, "host"), dir: filepath.Join(base, "life-0"), log: &bytes.Buffer{}}
	if w.node, err = gpusim.New(cfg, engine.SystemClock{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.node.Close)
	w.writeHost()
	w.port = &slicesInMemory{Processes: cgroup.NewProcesses(""), all: map[cgroup.SliceName]cgroup.Slice{}, w: w}
	for _, g := range w.truth() {
		w.ids = append(w.ids, g.Identity.UUID)
	}
	return w
}

// writeHost writes the files of /proc and /dev as after a boot. They do not follow the node: the daemon reads the same until
// the next boot.
func (w *virtual) writeHost() {
	w.Helper()
	root, err := hostroot.Write(w.root, w.node, hostroot.Options{})
	if err != nil {
		w.Fatal(err)
	}
	root.Close() // its log
	w.files = root
	w.node.SetHooks(gpusim.Hooks{})
	// The list has every capability of 32 GPUs, and every observation reads it.
	list := filepath.Join(w.root, "proc/driver/nvidia-caps/mig-minors")
	b, err := os.ReadFile(list)
	if err != nil {
		w.Fatal(err)
	}
	if i := bytes.Index(b, fmt.Appendf(nil, "gpu%d/", len(w.truth()))); i > 0 {
		if err := errors.Join(os.Remove(list), os.WriteFile(list, b[:i], 0o600)); err != nil {
			w.Fatal(err)
		}
	}
}

// reboot boots the host: the daemon ends before it and starts after it.
func (w *virtual) reboot() {
	w.Helper()
	w.end()
	w.node.Reboot()
	w.writeHost()
	w.port.mu.Lock()
	clear(w.port.all) // A new kernel has no cgroups.
	w.port.mu.Unlock()
	w.startDaemon()
}

// reload reloads the driver while no daemon runs. The slices stay, because the kernel keeps them.
func (w *virtual) reload() {
	w.Helper()
	w.end()
	if err := w.node.ReloadDriver(true); err != nil {
		w.Fatal(err)
	}
	w.writeHost()
	w.startDaemon()
}

// startDaemon starts a daemon on what is on disk.
func (w *virtual) startDaemon() {
	w.Helper()
	s := settings.Defaults()
	s.HostRoot, s.StateDir, s.RunDir, s.CDIDir, s.Getent = w.root, filepath.Join(w.dir, "state"), filepath.Join(
		w.dir, "run",
	), filepath.Join(w.dir, "cdi"), "off"
	s.SpecFile = w.specFile
	if err := s.Complete(); err != nil {
		w.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.fakeWorker = &fakeWorker{Driver: w.node.Driver(1000 + w.runs), w: w, runCtx: ctx, unresponsive: map[gpu.UUID]bool{}}
	fake := w.fakeWorker
	fake.Exclude(fake.excludes)
	d, err := build(ctx, s, slog.New(slog.NewTextHandler(w.log, nil)), &slog.LevelVar{}, environment{
		self: servertest.UidSelf,
		findHost: func(_ context.Context, s settings.Settings, _ *slog.Logger, _ host.HostEvents) (*host.Host, error) {
			h := &host.Host{
				Port:        w.port,
				Follow:      w.port.Processes,
				LoginFilter: devicepolicy.NewLoginFilter(cgroup.Hierarchy{}, hostOptions(s).LoginsCgroup(), s.RunDir, cgroup.Info{}),
				Close:       func() {},
			}
			h.Programs = noPrograms{}
			h.Helper = func(context.Context, []string) error { return w.files.MakeNodes() }
			h.Units = &detached.Services{Dir: filepath.Join(s.RunDir, "units")}
			h.Attachments = cgroup.NewAttachments(cgroup.AttachmentsOptions{})
			return h, nil
		},
		openDriver: func(settings.Settings, *host.Host, *slog.Logger) (driver, error) { return fake, nil },
	})
	if err != nil {
		w.Fatal(err)
	}
	d.tasks.Begin(ctx)
	now := d.Now
	d.Now = func() time.Time { w.pass(); return now() }
	w.Daemon, w.stop = d, stop
	if w.runs == 0 {
		w.Cleanup(w.end)
	}
	w.runs++
	d.begin(ctx)
}

// end stops the daemon like systemd does.
func (w *virtual) end() {
	if w.Daemon == nil {
		return
	}
	w.stop()
	w.tasks.Wait()
	w.Daemon.close()
	w.Daemon = nil
	awaitStarts()
}

// kill ends the daemon and its worker like SIGKILL: the next run finds the disk and the hardware as they are now.
func (w *virtual) kill() {
	w.Helper()
	next := filepath.Join(filepath.Dir(w.dir), fmt.Sprintf("life-%d", w.runs))
	if _, err := w.Audits.Flush(context.Background()); err != nil { // A copy while it writes has files of different moments.
		w.Fatal(err)
	}
	if err := os.CopyFS(next, os.DirFS(w.dir)); err != nil {
		w.Fatal(err)
	}
	// It gives directories the mode of the umask.
	if err := fs.WalkDir(os.DirFS(w.dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.Chmod(filepath.Join(next, name), info.Mode().Perm())
	}); err != nil {
		w.Fatal(err)
	}
	w.port.setDead(true)
	_ = w.fakeWorker.Close()
	w.end()
	w.port.setDead(false)
	w.dir = next
}

// do sends a request as root and decodes the answer; refusal is nil when it was accepted.
func (w *virtual) do(method, target, body string, into any) (refusal *api.Error) {
	w.Helper()
	rec := servertest.Request(w.server.Handler(), &server.Peer{}, method, target, strings.NewReader(body))
	if rec.Code >= 300 {
		return servertest.ErrorOf(w.T, rec)
	}
	decodeAnswer(w.T, rec, into)
	return nil
}

func decodeAnswer(t *testing.T, rec *httptest.ResponseRecorder, into any) {
	t.Helper()
	if into == nil {
		return
	}
	if err := json.Unmarshal(rec.Body.Bytes(), into); err != nil {
		t.Fatalf("cannot read the answer: %v: %s", err, rec.Body)
	}
}

// apply applies a spec and waits until the change has ended.
func (w *virtual) apply(spec, query string) (api.ApplyResult, *api.Operation, *api.Error) {
	w.Helper()
	var res api.ApplyResult
	refusal := w.do(http.MethodPut, "/v1/spec"+query, spec, &res)
	return res, w.waitIdle(res.Operation), refusal
}

// waitIdle waits for all running tasks, and then makes two passes of the converge loop. It returns the operation as it ended.
func (w *virtual) waitIdle(op *api.Operation) *api.Operation {
	w.Helper()
	w.tasks.Wait()
	for range 2 {
		w.converger.Pass(w.tasks.Context())
		w.tasks.Wait()
	}
	if op == nil {
		return nil
	}
	var out api.Operation
	if refusal := w.do(http.MethodGet, "/v1/operations/"+op.ID, "", &out); refusal != nil {
		w.Fatal(refusal)
	}
	return &out
}

func (w *virtual) statusNow() *api.Status {
	w.Helper()
	var s api.Status
	if refusal := w.do(http.MethodGet, "/v1/status", "", &s); refusal != nil {
		w.Fatal(refusal)
	}
	return &s
}

// truth returns the GPUs as they are, whatever the driver reports. It is no driver call.
func (w *virtual) truth() []gpusim.GPUView { return w.node.View(0).GPUs }

// layoutOf returns the instances that a GPU really has, with profiles, placements and compute instances.
func (w *virtual) layoutOf(i int) string {
	var out []string
	g := w.truth()[i]
	for _, in := range g.Instances {
		s := fmt.Sprintf("%d@%d", in.ProfileID, in.Placement.Start)
		for _, c := range in.Compute {
			s += fmt.Sprintf("/%d@%d", c.ProfileID, c.Placement.Start)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return fmt.Sprintf("MIG %s: %s", on(g.MIG.Current), strings.Join(out, " "))
}

func on(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// namesOf returns the names of the instances that a GPU really has, at any placement.
func (w *virtual) namesOf(i int) []string {
	var out []string
	g := w.truth()[i]
	for _, in := range g.Instances {
		p := slices.IndexFunc(g.Model.Profiles, func(p gpusim.Profile) bool { return p.ID == in.ProfileID })
		name := g.Model.Profiles[p].Name
		if len(in.Compute) == 1 && in.Compute[0].Placement.Size == g.Model.Profiles[p].Slices {
			out = append(out, name)
			continue
		}
		if len(in.Compute) == 0 {
			out = append(out, name+" without compute")
		}
		for _, c := range in.Compute {
			out = append(out, fmt.Sprintf("%dc.%s", c.Placement.Size, name))
		}
	}
	slices.Sort(out)
	return out
}

// violationf records a violation of an invariant. Many goroutines call it, so it takes the lock of the port.
func (w *virtual) violationf(format string, args ...any) {
	w.port.mu.Lock()
	defer w.port.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// staleRules returns the rules of slices that open a capability without an instance: the tenant that gets the next instance
// with this minor would share it.
func (w *virtual) staleRules() []string {
	present := map[uint32]bool{gpusim.CapMonitor: true}
	lost := func(uint32) bool { return false }
	for _, g := range w.truth() {
		if g.Lost { // Nothing can be opened on a lost GPU, and its instances cannot be read.
			others, from, to := lost, uint32(gpusim.CapGI(g.Identity.Minor, 0)), uint32(gpusim.CapGI(g.Identity.Minor+1, 0))
			lost = func(minor uint32) bool { return others(minor) || minor >= from && minor < to }
		}
		for _, in := range g.Instances {
			present[uint32(gpusim.CapGI(g.Identity.Minor, in.ID))] = true
			for _, c := range in.Compute {
				present[uint32(gpusim.CapCI(g.Identity.Minor, in.ID, c.ID))] = true
			}
		}
	}
	var out []string
	for _, s := range w.port.list() {
		for _, r := range s.Devices {
			if r.Major == hostroot.MajorCaps && !present[r.Minor] && !lost(r.Minor) {
				out = append(out, fmt.Sprintf("the slice of %s opens capability %d, which has no instance", s.Name, r.Minor))
			}
		}
	}
	return out
}

// pass is called where something of the daemon is read or changed.
func (w *virtual) pass() {
	if l := w.passed.Load(); l != nil {
		l.pass()
	}
}

// noPrograms has no detached command, and no output of one.
type noPrograms struct{ host.Programs }

func (noPrograms) Size(string) int64                            { return 0 }
func (noPrograms) Prune(func(id string) bool)                   {}
func (noPrograms) Finish(context.Context, func(id string) bool) {}

// fakeWorker replaces the client of the worker process: a call that takes longer than its deadline makes its GPU unresponsive, and
// the GPU is then excluded until a retry. Calls that run at the end of a run get no answer.
type fakeWorker struct {
	*gpusim.Driver
	w      *virtual
	runCtx context.Context

	mu           sync.Mutex // protects what follows
	unresponsive map[gpu.UUID]bool
	parked       bool
	process      context.Context // of the process that makes the calls; nil: of the first one, which did not crash
	crashed      context.CancelFunc
}

// processLocked is the process that makes the calls.
func (s *fakeWorker) processLocked() context.Context {
	if s.process == nil {
		s.process, s.crashed = context.WithCancel(s.runCtx)
	}
	return s.process
}

// crash ends the worker's process: its calls get no answer, the driver continues with those that change something, and the next call
// is made by another process.
func (s *fakeWorker) crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processLocked()
	s.crashed()
	s.process = nil
}

// Park ends the worker: its client of the driver ends, so that the driver can be unloaded.
func (s *fakeWorker) Park(ctx context.Context) error {
	s.w.pass()
	if err := ctx.Err(); err != nil { // As the worker's: it waits for the end of its process.
		return err
	}
	s.mu.Lock()
	s.parked = true
	s.mu.Unlock()
	return s.Driver.Close()
}

// Unpark lets the next call start a worker.
func (s *fakeWorker) Unpark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked {
		s.parked, s.Driver = false, s.w.node.Driver(1000+s.w.runs)
		s.Exclude(s.excludes)
		clear(s.unresponsive)
	}
}

// excludes reports whether a GPU did not answer: the worker that is started then does not access it.
func (s *fakeWorker) excludes(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unresponsive[id]
}

func withDeadline[T any](
	s *fakeWorker, ctx context.Context, op string, id gpu.UUID, limit time.Duration, f func(context.Context) (T, error),
) (T, error) {
	var none T
	s.w.pass()
	defer s.w.pass()
	if s.w.clientExited != nil && s.w.clientExited() {
		s.w.closeContext()
	}
	s.mu.Lock()
	unresponsive, parked, process := s.unresponsive[id], s.parked, s.processLocked()
	s.mu.Unlock()
	if parked {
		return none, &gpu.Error{Op: op, GPU: id, Err: gpu.ErrParked}
	}
	if unresponsive {
		return none, &gpu.Error{Op: op, GPU: id, Err: gpu.ErrTimeout}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(process, cancel)()
	out, err := f(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && id != "" {
		s.mu.Lock()
		s.unresponsive[id] = true
		s.mu.Unlock()
	}
	return out, err
}

// changing makes a call that changes hardware: at this time no slice may open a capability without an instance.
func changing[T any](
	s *fakeWorker, ctx context.Context, op string, id gpu.UUID, limit time.Duration, f func(context.Context) (T, error),
) (T, error) {
	defer s.w.concurrent.begin(id)()
	if s.runCtx.Err() == nil {
		for _, stale := range s.w.staleRules() {
			s.w.violationf("before %s on %s: %s", op, id, stale)
		}
	}
	return withDeadline(s, ctx, op, id, limit, f)
}

// overlap counts how many GPUs are changed at once.
type overlap struct {
	mu   sync.Mutex // protects the fields below
	now  map[gpu.UUID]int
	most int
}

func (o *overlap) begin(id gpu.UUID) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now == nil {
		o.now = map[gpu.UUID]int{}
	}
	o.now[id]++
	o.most = max(o.most, len(o.now))
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.now[id]--; o.now[id] == 0 {
			delete(o.now, id)
		}
	}
}

func (s *fakeWorker) Node(ctx context.Context) (gpu.NodeInfo, error) {
	info, err := withDeadline(s, ctx, "read the node", "", 10*time.Second, s.Driver.Node)
	for i := range info.GPUs {
		// A worker that never read a lost GPU knows nothing but its UUID.
		if id := &info.GPUs[i]; s.w.unknownWhenLost && id.Error != "" {
			*id = gpu.Identity{UUID: id.UUID, Index: -1, Minor: -1, NUMANode: -1, Error: id.Error}
		}
	}
	return info, err
}

func (s *fakeWorker) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	return withDeadline(
		s, ctx, "read", id, 2*time.Second, func(ctx context.Context) (gpu.Snapshot, error) { return s.Driver.Snapshot(ctx, id) },
	)
}

func (s *fakeWorker) Profiles(ctx context.Context, id gpu.UUID) (gpu.Profiles, error) {
	return withDeadline(
		s, ctx, "read profiles", id, 10*time.Second,
		func(ctx context.Context) (gpu.Profiles, error) { return s.Driver.Profiles(ctx, id) },
	)
}

func (s *fakeWorker) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	return withDeadline(
		s, ctx, "read processes", id, 2*time.Second,
		func(ctx context.Context) ([]gpu.Process, error) { return s.Driver.Processes(ctx, id) },
	)
}

func (s *fakeWorker) InstanceProcesses(ctx context.Context, id gpu.UUID, gi uint32) ([]gpu.Process, error) {
	return withDeadline(
		s, ctx, "read processes", id, 2*time.Second,
		func(ctx context.Context) ([]gpu.Process, error) { return s.Driver.InstanceProcesses(ctx, id, gi) },
	)
}

func (s *fakeWorker) NVLinks(ctx context.Context, id gpu.UUID) (gpu.NVLinks, error) {
	return withDeadline(
		s, ctx, "read the NVLinks", id, 10*time.Second,
		func(ctx context.Context) (gpu.NVLinks, error) { return s.Driver.NVLinks(ctx, id) },
	)
}

func (s *fakeWorker) MemoryLimit(ctx context.Context, id gpu.UUID, cgroup string) (gpu.MemoryLimit, error) {
	return withDeadline(
		s, ctx, "read the memory limit", id, 2*time.Second,
		func(ctx context.Context) (gpu.MemoryLimit, error) { return s.Driver.MemoryLimit(ctx, id, cgroup) },
	)
}

func (s *fakeWorker) SetMemoryLimit(ctx context.Context, id gpu.UUID, cgroup string, hard *uint64) error {
	_, err := changing(s, ctx, "set the memory limit", id, 2*time.Second, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.Driver.SetMemoryLimit(ctx, id, cgroup, hard)
	})
	return err
}

func (s *fakeWorker) SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (gpu.ModeChange, error) {
	return changing(
		s, ctx, "set MIG mode", id, time.Minute,
		func(ctx context.Context) (gpu.ModeChange, error) { return s.Driver.SetMIGMode(ctx, id, on) },
	)
}

func (s *fakeWorker) CreateInstance(ctx context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error) {
	return changing(
		s, ctx, "create instance", id, 30*time.Second,
		func(ctx context.Context) (gpu.Instance, error) { return s.Driver.CreateInstance(ctx, id, want) },
	)
}

func (s *fakeWorker) CompleteInstance(ctx context.Context, id gpu.UUID, gi uint32, compute []gpu.NewCompute) (gpu.Instance, error) {
	return changing(s, ctx, "complete instance", id, 30*time.Second, func(ctx context.Context) (gpu.Instance, error) {
		return s.Driver.CompleteInstance(ctx, id, gi, compute)
	})
}

func (s *fakeWorker) DestroyInstance(ctx context.Context, id gpu.UUID, gi uint32) error {
	_, err := changing(s, ctx, "destroy instance", id, 30*time.Second, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.Driver.DestroyInstance(ctx, id, gi)
	})
	return err
}

func (s *fakeWorker) SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	_, err := changing(s, ctx, "set the compute mode", id, 30*time.Second, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.Driver.SetComputeMode(ctx, id, mode)
	})
	return err
}

func (s *fakeWorker) Health(ctx context.Context, id gpu.UUID) (gpu.Health, error) {
	return withDeadline(
		s, ctx, "read the health", id, 10*time.Second,
		func(ctx context.Context) (gpu.Health, error) { return s.Driver.Health(ctx, id) },
	)
}

func (s *fakeWorker) Sensors(ctx context.Context, id gpu.UUID) (gpu.Sensors, error) {
	return withDeadline(
		s, ctx, "read the sensors", id, 2*time.Second,
		func(ctx context.Context) (gpu.Sensors, error) { return s.Driver.Sensors(ctx, id) },
	)
}

func (s *fakeWorker) SetPowerLimit(ctx context.Context, id gpu.UUID, milliwatts uint64) error {
	_, err := changing(s, ctx, "set the power limit", id, 30*time.Second, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.Driver.SetPowerLimit(ctx, id, milliwatts)
	})
	return err
}

// Retry includes a GPU again that was excluded.
func (s *fakeWorker) Retry(ctx context.Context, id gpu.UUID) error {
	s.mu.Lock()
	delete(s.unresponsive, id)
	s.mu.Unlock()
	_, err := s.Snapshot(ctx, id)
	return err
}

// Status returns which GPUs are excluded.
func (s *fakeWorker) Status() worker.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked {
		return worker.Status{Parked: true}
	}
	return worker.Status{PID: 1, Unresponsive: slices.Sorted(maps.Keys(s.unresponsive))}
}

// Stats counts the writes to the node.
func (s *fakeWorker) ReadingTime(gpu.UUID) time.Duration { return 0 }

func (s *fakeWorker) Stats() worker.Stats { return worker.Stats{Writes: s.w.node.Counters().Writes} }

// slicesInMemory are cgroups that enforce every rule. Every slice counts as used: none may be without its limits for a
// moment.
type slicesInMemory struct {
	*cgroup.Processes
	w *virtual

	mu            sync.Mutex // protects the fields below, and violations of the node
	all           map[cgroup.SliceName]cgroup.Slice
	writes        int
	dead          bool            // the daemon was killed: calls fail
	allowedLimits map[string]bool // limits that a tenant may have, as text; nil: any
}

func (p *slicesInMemory) Info() cgroup.Info {
	return cgroup.Info{
		Adapter: "memory",
		Slices:  true,
		Driver:  cgroup.DriverCgroupfs,
		Devices: true,
		Limits:  []string{"cpu", "memory", "tasks"},
	}
}

func (p *slicesInMemory) setDead(dead bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = dead
}

func (p *slicesInMemory) list() []cgroup.Slice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.all), func(a, b cgroup.Slice) int { return cmp.Compare(a.Name.String(), b.Name.String()) })
}

func (p *slicesInMemory) SetSlice(ctx context.Context, s cgroup.Slice) (bool, error) {
	p.w.pass()
	defer p.w.pass()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return false, errors.New("the daemon was killed")
	}
	if s.Name.Grant == "" && p.allowedLimits != nil && !p.allowedLimits[limitsText(s.Limits)] {
		p.w.violations = append(
			p.w.violations, fmt.Sprintf("the slice of %s got limits that no spec has: %s", s.Name, limitsText(s.Limits)),
		)
	}
	if old, ok := p.all[s.Name]; ok && stateOfSlice(old).Matches(s) {
		return false, nil
	}
	p.writes++
	p.all[s.Name] = s
	return true, nil
}

func limitsText(l cgroup.Limits) string {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func stateOfSlice(s cgroup.Slice) cgroup.SliceState {
	return cgroup.SliceState{Name: s.Name, Path: "/" + s.Name.String(), Limits: s.Limits, Closed: s.Closed, Devices: s.Devices}
}

func (p *slicesInMemory) Slices(ctx context.Context) ([]cgroup.SliceState, error) {
	p.w.pass()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var out []cgroup.SliceState
	for _, s := range p.list() {
		out = append(out, stateOfSlice(s))
	}
	return out, nil
}

func (p *slicesInMemory) Slice(ctx context.Context, name cgroup.SliceName) (cgroup.SliceState, error) {
	p.w.pass()
	if err := ctx.Err(); err != nil {
		return cgroup.SliceState{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.all[name]
	if !ok {
		return cgroup.SliceState{}, fmt.Errorf("slice %s: %w", name, cgroup.ErrNotFound)
	}
	return stateOfSlice(s), nil
}

func (p *slicesInMemory) RemoveSlice(ctx context.Context, name cgroup.SliceName) error {
	p.w.pass()
	defer p.w.pass()
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return errors.New("the daemon was killed")
	}
	if _, ok := p.all[name]; ok {
		p.writes++
		delete(p.all, name)
	}
	return nil
}
