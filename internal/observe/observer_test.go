package observe_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake answers as a node does and records the queries.
type fake struct {
	mu       sync.Mutex // guards what follows
	ids      []gpu.Identity
	capable  map[gpu.UUID]bool
	used     map[gpu.UUID]uint64
	fail     map[gpu.UUID]error // of Snapshot
	noNode   error
	noLayout error // of Profiles
	running  []gpu.Process
	reading  func() // called when a GPU is read; nil: nothing
	calls    []string
	states   []cgroup.SliceState

	inside, most atomic.Int32 // how many calls of Slices run, and the maximum
}

func newFake() *fake {
	return &fake{
		ids: []gpu.Identity{
			{UUID: "GPU-b", Index: 1, PCI: "0000:0f:00.0", Model: "NVIDIA A100"},
			{UUID: "GPU-a", Index: 0, PCI: "0000:07:00.0", Model: "NVIDIA A100"},
			{UUID: "GPU-c", Index: 2, PCI: "0000:47:00.0", Model: "NVIDIA L4"},
		},
		capable: map[gpu.UUID]bool{"GPU-a": true, "GPU-b": true},
		used:    map[gpu.UUID]uint64{},
		fail:    map[gpu.UUID]error{},
	}
}

// takeCalls returns the calls since the last time, sorted: GPUs are read in parallel.
func (f *fake) takeCalls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.calls
	f.calls = nil
	slices.Sort(out)
	return out
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) Node(context.Context) (gpu.NodeInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "node")
	return gpu.NodeInfo{DriverVersion: "580.95.05", GPUs: slices.Clone(f.ids)}, f.noNode
}

func (f *fake) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reading != nil {
		f.reading()
	}
	if err := ctx.Err(); err != nil {
		return gpu.Snapshot{}, &gpu.Error{Op: "read", GPU: id, Err: err}
	}
	f.calls = append(f.calls, "snapshot "+string(id))
	if err := f.fail[id]; err != nil {
		return gpu.Snapshot{}, err
	}
	i := slices.IndexFunc(f.ids, func(k gpu.Identity) bool { return k.UUID == id })
	return gpu.Snapshot{
		Identity:  f.ids[i],
		Memory:    gpu.Memory{Used: f.used[id]},
		MIG:       gpu.MIGState{Capable: f.capable[id]},
		Processes: f.running,
	}, nil
}

func (f *fake) Profiles(_ context.Context, id gpu.UUID) (gpu.Profiles, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "profiles "+string(id))
	return gpu.Profiles{Width: 8}, f.noLayout
}

func (f *fake) Slices(context.Context) ([]cgroup.SliceState, error) {
	n := f.inside.Add(1)
	defer f.inside.Add(-1)
	for {
		m := f.most.Load()
		if n <= m || f.most.CompareAndSwap(m, n) {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.states), nil
}

func (f *fake) Observe(_ context.Context, d mps.Device) *mps.State {
	if d == mps.Whole("GPU-c") {
		return &mps.State{GPU: d.GPU, Phase: mps.Running}
	}
	return nil
}

func (f *fake) ObserveInstances(context.Context, gpu.UUID, []gpu.Placement) []*mps.State { return nil }

func (f *fake) Program(context.Context) mps.Program { return mps.Program{} }

// start returns an observer of a host after one boot and one driver load.
func start(t *testing.T) (*observe.Observer, *fake, string) {
	t.Helper()
	root := t.TempDir()
	boot(t, root, "first")
	if err := os.MkdirAll(filepath.Join(root, "sys/module/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := newFake()
	now := time.Unix(1000, 0)
	return &observe.Observer{Driver: f, Slices: f, MPS: f, HostRoot: root, Now: func() time.Time { return now }}, f, root
}

func boot(t *testing.T, root, id string) {
	t.Helper()
	dir := filepath.Join(root, "proc/sys/kernel/random")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "boot_id"), []byte(id+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

var (
	everything = []string{"node", "profiles GPU-a", "profiles GPU-b", "snapshot GPU-a", "snapshot GPU-b", "snapshot GPU-c"}
	snapshots  = []string{"snapshot GPU-a", "snapshot GPU-b", "snapshot GPU-c"}
)

func TestOneMessageAGPUWhenNothingChanged(t *testing.T) {
	o, f, _ := start(t)
	if o.Last() != nil {
		t.Error("there is an observation before the first one")
	}
	first := o.Observe(t.Context())
	expect(t, "the first queries everything", everything, f.takeCalls())
	second := o.Observe(t.Context())
	expect(t, "the second reads each GPU once", snapshots, f.takeCalls())
	if o.Last() != second || second == first {
		t.Error("the last observation is not the newest")
	}
	expect(t, "the sequence", []uint64{1, 2}, []uint64{first.Seq, second.Seq})
	if !second.At.Equal(time.Unix(1000, 0)) {
		t.Errorf("it was made at %v by another clock", second.At)
	}
	for i, g := range second.GPUs {
		if g.Identity.Index != i {
			t.Errorf("GPU %d is at %d: they are not by index", g.Identity.Index, i)
		}
		if capable := g.Identity.UUID != "GPU-c"; (g.Profiles != nil) != capable {
			t.Errorf("%s has profiles %v", g.Identity.UUID, g.Profiles)
		}
		if want := g.Identity.UUID == "GPU-c"; (g.MPS != nil) != want {
			t.Errorf("%s has MPS %v", g.Identity.UUID, g.MPS)
		}
	}
	expect(
		t, "the identities", []gpu.UUID{"GPU-a", "GPU-b", "GPU-c"},
		[]gpu.UUID{second.Identities()[0].UUID, second.Identities()[1].UUID, second.Identities()[2].UUID},
	)
	if g, ok := second.GPU("GPU-c"); !ok || g.Identity.Index != 2 {
		t.Errorf("GPU-c is found as %v, %v", g, ok)
	}
	if _, ok := second.GPU("GPU-x"); ok {
		t.Error("a missing GPU was found")
	}
}

func TestWhatIsQueriedAgain(t *testing.T) {
	lost := &gpu.Error{Op: "read", GPU: "GPU-b", Err: gpu.ErrLost}
	for name, c := range map[string]struct {
		change func(t *testing.T, o *observe.Observer, f *fake, root string)
		want   []string
	}{
		"nothing happened":  {func(*testing.T, *observe.Observer, *fake, string) {}, snapshots},
		"after Forget":      {func(_ *testing.T, o *observe.Observer, _ *fake, _ string) { o.Invalidate() }, everything},
		"after a boot":      {func(t *testing.T, _ *observe.Observer, _ *fake, root string) { boot(t, root, "second") }, everything},
		"the driver loaded": {func(t *testing.T, _ *observe.Observer, _ *fake, root string) { reload(t, root) }, everything},
		"a GPU was lost": {func(t *testing.T, o *observe.Observer, f *fake, _ string) {
			f.set(func() { f.fail["GPU-b"] = lost })
			o.Observe(t.Context())
			f.takeCalls()
		}, append([]string{"node"}, snapshots...)},
		"a GPU was busy": {func(t *testing.T, o *observe.Observer, f *fake, _ string) {
			f.set(func() { f.fail["GPU-b"] = &gpu.Error{Op: "read", GPU: "GPU-b", Err: gpu.ErrTimeout} })
			o.Observe(t.Context())
			f.takeCalls()
		}, snapshots},
	} {
		t.Run(name, func(t *testing.T) {
			o, f, root := start(t)
			o.Observe(t.Context())
			f.takeCalls()
			c.change(t, o, f, root)
			o.Observe(t.Context())
			expect(t, "queries", c.want, f.takeCalls())
		})
	}
}

func reload(t *testing.T, root string) {
	t.Helper()
	then := time.Unix(2000, 0)
	if err := os.Chtimes(filepath.Join(root, "sys/module/nvidia"), then, then); err != nil {
		t.Fatal(err)
	}
}

// Profiles that could not be read are queried again.
func TestProfilesThatFail(t *testing.T) {
	o, f, _ := start(t)
	f.set(func() { f.noLayout = &gpu.Error{Op: "read profiles", Err: gpu.ErrNotSupported} })
	n := o.Observe(t.Context())
	if g, _ := n.GPU("GPU-a"); g.Profiles != nil || g.Err != nil {
		t.Errorf("profiles %v, error %v: want neither", g.Profiles, g.Err)
	}
	f.takeCalls()
	f.set(func() { f.noLayout = nil })
	n = o.Observe(t.Context())
	expect(t, "queries", append([]string{"profiles GPU-a", "profiles GPU-b"}, snapshots...), f.takeCalls())
	if g, _ := n.GPU("GPU-a"); g.Profiles == nil {
		t.Error("they are still missing")
	}
}

func TestAFailingGPUKeepsItsLastValues(t *testing.T) {
	o, f, _ := start(t)
	f.set(func() { f.used["GPU-b"] = 7 })
	o.Observe(t.Context())
	broken := &gpu.Error{Op: "read", GPU: "GPU-b", Err: gpu.ErrLost}
	f.set(func() { f.fail["GPU-b"], f.used["GPU-a"] = broken, 9 })
	n := o.Observe(t.Context())
	g, _ := n.GPU("GPU-b")
	if !errors.Is(g.Err, gpu.ErrLost) || g.Memory.Used != 7 || g.Profiles == nil || g.Identity.Index != 1 {
		t.Errorf("it is observed as %+v", g)
	}
	if a, _ := n.GPU("GPU-a"); a.Err != nil || a.Memory.Used != 9 {
		t.Errorf("the other GPU is observed as %+v", a)
	}

	t.Run("under the number that it has now", func(t *testing.T) {
		f.set(func() { f.ids[0].Index, f.ids[0].Minor = 5, 4 })
		n := o.Observe(t.Context())
		if g, _ := n.GPU("GPU-b"); g.Identity.Index != 5 || g.Identity.Minor != 4 || g.Memory.Used != 7 {
			t.Errorf("it is observed as %+v", g)
		}
	})
	t.Run("with its name when the new one is empty", func(t *testing.T) {
		f.set(func() { f.ids[0] = gpu.Identity{UUID: "GPU-b", Index: 5, Error: "the GPU is lost"} })
		n := o.Observe(t.Context())
		if g, _ := n.GPU("GPU-b"); g.Identity.Model != "NVIDIA A100" || g.Identity.PCI == "" {
			t.Errorf("it is observed as %+v", g.Identity)
		}
	})
	t.Run("until it answers again", func(t *testing.T) {
		f.set(func() {
			f.ids[0] = gpu.Identity{UUID: "GPU-b", Index: 1, Model: "NVIDIA A100"}
			delete(f.fail, "GPU-b")
			f.used["GPU-b"] = 8
		})
		n := o.Observe(t.Context())
		if g, _ := n.GPU("GPU-b"); g.Err != nil || g.Memory.Used != 8 {
			t.Errorf("it is observed as %+v", g)
		}
	})
}

// A GPU that was never observed has its identity and the error only.
func TestAGPUThatNeverAnswered(t *testing.T) {
	o, f, _ := start(t)
	f.set(func() { f.fail["GPU-b"] = &gpu.Error{Op: "read", GPU: "GPU-b", Err: gpu.ErrTimeout} })
	g, ok := o.Observe(t.Context()).GPU("GPU-b")
	if !ok || g.Err == nil || g.Identity.Model != "NVIDIA A100" || g.Profiles != nil || g.Memory != (gpu.Memory{}) {
		t.Errorf("it is observed as %+v", g)
	}
}

func TestADriverErrorKeepsTheGPUs(t *testing.T) {
	o, f, _ := start(t)
	o.Observe(t.Context())
	notLoaded := &gpu.Error{Op: "start", Err: gpu.ErrNotLoaded}
	o.Invalidate()
	f.set(func() { f.noNode = notLoaded })
	n := o.Observe(t.Context())
	if !errors.Is(n.DriverErr, gpu.ErrNotLoaded) || n.Driver.DriverVersion != "580.95.05" || len(n.GPUs) != 3 {
		t.Fatalf("it is observed as %+v", n)
	}
	for _, g := range n.GPUs {
		if !errors.Is(g.Err, gpu.ErrNotLoaded) || g.Identity.Model == "" {
			t.Errorf("a GPU is observed as %+v", g)
		}
	}
	f.takeCalls()
	f.set(func() { f.noNode = nil })
	n = o.Observe(t.Context())
	if n.DriverErr != nil || n.GPUs[0].Err != nil {
		t.Errorf("after the driver came back: %v, %v", n.DriverErr, n.GPUs[0].Err)
	}
	expect(t, "queries after the driver came back", everything, f.takeCalls())
}

func TestADriverThatNeverAnswered(t *testing.T) {
	o, f, _ := start(t)
	f.set(func() { f.noNode = &gpu.Error{Op: "start", Err: gpu.ErrNoLibrary} })
	n := o.Observe(t.Context())
	if !errors.Is(n.DriverErr, gpu.ErrNoLibrary) || len(n.GPUs) != 0 || o.Last() != n {
		t.Errorf("it is observed as %+v", n)
	}
}

func TestSlicesAreSorted(t *testing.T) {
	o, f, _ := start(t)
	name := func(tenant, grant string) cgroup.SliceState {
		return cgroup.SliceState{Name: cgroup.SliceName{Tenant: tenant, Grant: grant}}
	}
	f.set(func() {
		f.states = []cgroup.SliceState{name("red", "part"), name("blue", ""), name("", ""), name("red", "")}
	})
	var got []string
	for _, s := range o.Observe(t.Context()).Slices {
		got = append(got, s.Name.Tenant+"/"+s.Name.Grant)
	}
	expect(t, "slices", []string{"/", "blue/", "red/", "red/part"}, got)
}

// An observation is immutable: the next one does not change it.
func TestNodeIsImmutable(t *testing.T) {
	o, f, _ := start(t)
	first := o.Observe(t.Context())
	f.set(func() { f.used["GPU-a"] = 5; f.fail["GPU-b"] = gpu.ErrLost })
	o.Observe(t.Context())
	if g, _ := first.GPU("GPU-a"); g.Memory.Used != 0 {
		t.Error("the memory of the previous observation changed")
	}
	if g, _ := first.GPU("GPU-b"); g.Err != nil {
		t.Error("the previous observation has an error")
	}
}

func TestObservationsAreSerialized(t *testing.T) {
	o, f, _ := start(t)
	const many = 16
	seqs := make([]uint64, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			if i%4 == 0 {
				o.Invalidate()
			}
			seqs[i] = o.Observe(t.Context()).Seq
			if n := o.Last(); n == nil || len(n.GPUs) != 3 {
				t.Errorf("the last observation is %+v", n)
			}
		})
	}
	wg.Wait()
	slices.Sort(seqs)
	for i, s := range seqs {
		if s != uint64(i+1) {
			t.Fatalf("the sequence numbers are %v", seqs)
		}
	}
	if most := f.most.Load(); most != 1 {
		t.Errorf("%d observations ran at once", most)
	}
}

func TestReadEpoch(t *testing.T) {
	root := t.TempDir()
	if e := observe.ReadEpoch(root); e != (observe.Epoch{}) {
		t.Errorf("of an empty host: %+v", e)
	}
	boot(t, root, "0d5a7e5c-1111")
	e := observe.ReadEpoch(root)
	expect(t, "without a driver", observe.Epoch{Boot: "0d5a7e5c-1111"}, e)
	expect(t, "as text", "0d5a7e5c-1111/", e.String())

	if err := os.MkdirAll(filepath.Join(root, "sys/module/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	loaded := observe.ReadEpoch(root)
	if loaded.Driver == "" || loaded.Boot != e.Boot {
		t.Errorf("with a driver: %+v", loaded)
	}
	if again := observe.ReadEpoch(root); again != loaded {
		t.Errorf("the second reading is %v, the first was %v", again, loaded)
	}
	reload(t, root)
	if later := observe.ReadEpoch(root); later.Driver == loaded.Driver {
		t.Error("a driver that was loaded again has the same epoch")
	}
}

// A caller who goes away while the GPUs are read, or whose time was over before, leaves no errors in the last observation.
func TestACallerWhoGoesAwayLeavesNoErrors(t *testing.T) {
	for name, cut := range map[string]func(*fake, context.Context) (context.Context, func()){
		"during the reading": func(f *fake, ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancel(ctx)
			f.reading = cancel
			return ctx, cancel
		},
		"before it": func(_ *fake, ctx context.Context) (context.Context, func()) {
			return context.WithDeadline(ctx, time.Unix(1000, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, f, _ := start(t)
			first := o.Observe(t.Context())
			ctx, cancel := cut(f, t.Context())
			defer cancel()
			failed := o.Observe(ctx)
			if failed.GPUs[0].Err == nil {
				t.Error("the caller read a GPU")
			}
			if o.Last() != first {
				t.Errorf("the others see %v", o.Last().GPUs[0].Err)
			}
			f.set(func() { f.reading = nil })
			if next := o.Observe(t.Context()); o.Last() != next || next.GPUs[0].Err != nil {
				t.Errorf("the next observation is kept as %+v", o.Last())
			}
		})
	}
}

// A process that has ended is no user of a GPU, also where the driver lists it for a moment longer.
func TestProcessesThatHaveEnded(t *testing.T) {
	o, f, _ := start(t)
	f.running = []gpu.Process{{PID: 41}, {PID: 42, Kind: gpu.MPSProcess}, {PID: 43}}
	o.Ended = func(pid int) bool { return pid == 42 }
	n := o.Observe(t.Context())
	for i := range n.GPUs {
		if d := cmp.Diff([]gpu.Process{{PID: 41}, {PID: 43}}, n.GPUs[i].Processes); d != "" {
			t.Errorf("%s (-want +got):\n%s", n.GPUs[i].Identity.UUID, d)
		}
	}
	if len(f.running) != 3 || f.running[1].PID != 42 {
		t.Errorf("the driver's own list was changed: %v", f.running)
	}
}
