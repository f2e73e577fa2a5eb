package outside

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is one GPU with processes: of alice 101 and 102, of bob 201, of a lease 301, and the worker's 401.
type fixture struct {
	*Watch
	node    *observe.Node
	rows    []gpu.UtilSample
	err     error
	queries int
	got     []usage.OutsideInterval
}

func (f *fixture) Utilization(context.Context, gpu.UUID, uint64) ([]gpu.UtilSample, uint64, error) {
	f.queries++
	return f.rows, 0, f.err
}

func (f *fixture) LeaseLookup(int) func(int) (string, bool) {
	return func(pid int) (string, bool) { return "vision-1", pid/100 == 3 }
}

func (f *fixture) RecordOutside(i *usage.OutsideInterval) { f.got = append(f.got, *i) }

func newFixture() *fixture {
	f := &fixture{node: &observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-1"}}}}}}
	f.Watch = &Watch{
		Driver: f, Attribution: f, Recorder: f, WorkerPID: func() int { return 401 }, gpus: map[gpu.UUID]*watched{},
		UserOf: func(pid int) (string, int, bool) {
			return map[int]string{1: "alice", 2: "bob", 3: "carol", 4: "root"}[pid/100], pid / 100, true
		},
	}
	f.lists(
		map[int]*uint64{
			101: new(uint64(2 << 30)),
			102: new(uint64(1 << 30)),
			201: nil,
			301: new(uint64(1 << 30)),
			401: new(uint64(1 << 20)),
		},
	)
	return f
}

func (f *fixture) lists(memory map[int]*uint64) {
	f.node.GPUs[0].Processes = nil
	for pid, m := range memory {
		f.node.GPUs[0].Processes = append(f.node.GPUs[0].Processes, gpu.Process{PID: pid, Memory: m})
	}
}

// passes lets passes go by, with a reading of the GPU before each.
func (f *fixture) passes(t *testing.T, n int) {
	t.Helper()
	for range n {
		f.node.GPUs[0].ReadAt = time.Now()
		f.pass(t.Context(), f.node)
		time.Sleep(interval) // in the virtual time of the bubble
	}
}

// sums adds up what was reported, by user.
func (f *fixture) sums() map[string]*sum {
	out := map[string]*sum{}
	for i := range f.got {
		x := &f.got[i]
		s := out[x.User]
		if s == nil {
			s = &sum{}
			out[x.User] = s
		}
		if x.Held {
			s.held += x.Length()
		}
		if x.Memory != nil {
			s.memory += x.Length()
			s.peak = max(s.peak, x.Memory.Peak)
		}
		if x.Busy != nil {
			s.known += x.Length()
			s.busy += x.Busy.Time
		}
	}
	return out
}

type sum struct {
	held, memory, known, busy time.Duration
	peak                      uint64
}

// Users have the time, the memory and the busy time of their processes; leases and gpushare itself are left out.
func TestUsersOutsideOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.rows = []gpu.UtilSample{{PID: 101, SM: 20}, {PID: 102, SM: 20}, {PID: 301, SM: 40}}
		f.passes(t, 5)
		got, time := f.sums(), 4*interval
		if a := got["alice"]; len(got) != 2 || a == nil || a.held != time || a.memory != time || a.peak != 3<<30 || a.known != time ||
			(a.busy-time*4/10).Abs() > time/100 {
			t.Errorf("alice has %+v of %d users", got["alice"], len(got))
		}
		if b := got["bob"]; b == nil || b.held != time || b.memory != 0 || b.known != time || b.busy != 0 {
			t.Errorf("bob, whose memory the driver does not report, has %+v", got["bob"])
		}
		h := f.Uses()
		if len(h) != 2 || h[0].User != "alice" || len(h[0].PIDs) != 2 || *h[0].Memory != 3<<30 || h[1].User != "bob" || h[1].Memory != nil {
			t.Errorf("the uses are %+v", h)
		}
	})
}

// What cannot be read is not counted, and the uses say why. A GPU without such processes is not queried.
func TestWhatIsNotMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(f *fixture)
		held, busy bool // counted after the change
		unmeasured bool
		uses       int
	}{
		"as it is":                   {func(*fixture) {}, true, true, false, 2},
		"a GPU in MIG mode":          {func(f *fixture) { f.node.GPUs[0].MIG.Current = true }, true, false, true, 2},
		"the driver has no samples":  {func(f *fixture) { f.err = gpu.ErrNotSupported }, true, false, true, 2},
		"the GPU does not answer":    {func(f *fixture) { f.node.GPUs[0].Err = errors.New("lost") }, false, false, true, 2},
		"no process outside is left": {func(f *fixture) { f.lists(map[int]*uint64{301: nil}) }, false, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				f.passes(t, 2)
				c.change(f)
				f.passes(t, 1) // It may report what was before.
				f.got, f.queries = nil, 0
				f.passes(t, 4)
				a := f.sums()["alice"]
				if a == nil {
					a = &sum{}
				}
				if (a.held > 0) != c.held || (a.known > 0) != c.busy || f.queries > 4 || (f.queries > 0) != (f.err != nil || c.busy) {
					t.Errorf("alice has %+v after %d queries", a, f.queries)
				}
				h := f.Uses()
				if len(h) != c.uses || len(h) > 0 && (h[0].Unmeasured != "") != c.unmeasured {
					t.Errorf("the uses are %+v", h)
				}
			})
		})
	}
}
