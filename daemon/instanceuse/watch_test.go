package instanceuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a GPU with the instances 1 and 2, which have one device each, and a GPU without MIG.
type fixture struct {
	*Watch
	node    *observe.Node
	live    []lease.Lease
	ended   []lease.Lease
	leaseOf map[int]string
	busy    map[uint32]*float64
	err     error
	queries []string
	read    map[uint32]bool
	got     []usage.Interval
}

func (f *fixture) InstanceUse(_ context.Context, id gpu.UUID, instances []uint32) (out []gpu.InstanceUse, err error) {
	f.queries = append(f.queries, fmt.Sprint(id, instances))
	for _, gi := range instances {
		if b, ok := f.busy[gi]; ok && f.read[gi] { // The first reading has nothing to compare with.
			out = append(out, gpu.InstanceUse{GI: gi, Length: interval, Busy: b, SM: new(12.5)})
		}
		f.read[gi] = f.err == nil
	}
	return out, f.err
}

func (f *fixture) Record(i usage.Interval) { f.got = append(f.got, i) }

func newFixture() *fixture {
	f := &fixture{leaseOf: map[int]string{}, busy: map[uint32]*float64{}, read: map[uint32]bool{}}
	f.node = &observe.Node{Epoch: observe.Epoch{Boot: "boot", Driver: "load"}, GPUs: []observe.GPU{
		{Snapshot: gpu.Snapshot{
			Identity: gpu.Identity{UUID: "GPU-1"}, MIG: gpu.MIGState{Current: true},
			Instances: []gpu.Instance{
				{ID: 1, Compute: []gpu.ComputeInstance{{UUID: "MIG-1"}}}, {ID: 2, Compute: []gpu.ComputeInstance{{UUID: "MIG-2"}}},
			},
		}},
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-2"}}},
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-3"}, MIG: gpu.MIGState{Current: true}}},
	}}
	f.Watch = &Watch{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Driver: f, Recorder: f,
		Observed:    func() *observe.Node { return f.node },
		Live:        func() []lease.Lease { return f.live },
		EndedLately: func(time.Duration) []lease.Lease { return f.ended },
		LeaseLookup: func(int) func(int) (string, bool) {
			return func(pid int) (string, bool) { id, ok := f.leaseOf[pid]; return id, ok }
		},
	}
	return f
}

// running adds a lease of a device that started so long ago.
func (f *fixture) running(id, device string, ago time.Duration) {
	f.live = append(f.live, lease.Lease{
		ID: id, State: lease.Running, Started: new(time.Now().Add(-ago)), Place: lease.Place{Devices: []gpu.UUID{gpu.UUID(device)}},
	})
}

// What an instance did is that of the lease that has it alone. Of several, and next to processes of no lease, only that nothing ran is
// known of each.
func TestUseIsOfTheLeaseThatIsAlone(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(f *fixture)
		busy    *float64
		want    string // in the account
		of      string // the lease whose use is shown
	}{
		"alone":                        {func(*fixture) {}, new(40.0), "red-1 4s", "red-1"},
		"alone, and idle":              {func(*fixture) {}, new(0.0), "red-1 0s", "red-1"},
		"not reported":                 {func(*fixture) {}, nil, "", "red-1"}, // Other values of it are.
		"two leases":                   {func(f *fixture) { f.running("blue-1", "MIG-1", time.Hour) }, new(40.0), "", ""},
		"two leases, and nothing runs": {func(f *fixture) { f.running("blue-1", "MIG-1", time.Hour) }, new(0.0), "red-1 0s, blue-1 0s", ""},
		"started in the interval":      {func(f *fixture) { f.live = nil; f.running("red-2", "MIG-1", interval/2) }, new(40.0), "", ""},
		"no lease":                     {func(f *fixture) { f.live = nil }, new(40.0), "", ""},
		"a process of no lease": {func(f *fixture) {
			f.node.GPUs[0].Processes = []gpu.Process{{PID: 7, GI: new(uint32(1))}}
		}, new(40.0), "", ""},
		"a process of the lease": {func(f *fixture) {
			f.leaseOf[7] = "red-1"
			f.node.GPUs[0].Processes = []gpu.Process{{PID: 7, GI: new(uint32(1))}, {PID: 8, GI: new(uint32(2))}}
		}, new(40.0), "red-1 4s", "red-1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				f.running("red-1", "MIG-1", time.Hour)
				c.prepare(f)
				f.busy[1] = c.busy
				f.pass(t.Context(), f.node)
				f.pass(t.Context(), f.node)
				var got []string
				for _, i := range f.got {
					got = append(got, i.Lease+" "+i.Busy.Time.String())
					if i.To.Sub(i.From) != interval || i.GPU != "GPU-1" || i.Memory != nil || i.Occupancy != nil {
						t.Errorf("%+v", i)
					}
				}
				if s := strings.Join(got, ", "); s != c.want {
					t.Errorf("the account has %q, want %q", s, c.want)
				}
				u, of := f.Of("GPU-1", 1)
				if of != c.of {
					t.Errorf("it is shown as the use of %q, want %q", of, c.of)
				}
				if u == nil || (u.Busy == nil) != (c.busy == nil) || *u.Multiprocessors != 12.5 || u.MemoryBandwidth != nil ||
					u.IntervalSeconds != interval.Seconds() {
					t.Errorf("shown is %+v", u)
				}
				for id, gi := range map[gpu.UUID]uint32{"GPU-1": 2, "GPU-2": 1} {
					if u, of := f.Of(id, gi); u != nil || of != "" {
						t.Errorf("what was not reported is shown: %+v of %q", u, of)
					}
				}
				time.Sleep(staleAfter + time.Second)
				if u, of := f.Of("GPU-1", 1); u != nil || of != "" {
					t.Errorf("old values are shown: %+v of %q", u, of)
				}
			})
		})
	}
}

// The work of who had an instance in a part of the interval only, a lease or a process of none, is not that of the lease that has it at
// the end, also if a reading failed meanwhile. That nothing ran is known of it.
func TestUseIsNotOfTheLeaseThatIsLeft(t *testing.T) {
	outside := func(f *fixture, pids ...int) {
		f.node.GPUs[0].Processes = nil
		for _, pid := range pids {
			f.node.GPUs[0].Processes = append(f.node.GPUs[0].Processes, gpu.Process{PID: pid, GI: new(uint32(1))})
		}
	}
	for name, c := range map[string]struct{ before, after func(f *fixture) }{
		"a lease ended": {
			func(f *fixture) { f.running("blue-1", "MIG-1", time.Hour) }, func(f *fixture) { f.live = f.live[:1] },
		},
		"a process ended": {func(f *fixture) { outside(f, 7) }, func(f *fixture) { outside(f) }},
		"a lease ended, and a reading failed": {
			func(f *fixture) { f.running("blue-1", "MIG-1", time.Hour) },
			func(f *fixture) {
				f.live, f.err = f.live[:1], gpu.ErrTimeout
				busy := f.busy
				f.busy = nil
				f.pass(context.Background(), f.node)
				f.err, f.busy, f.read[1] = nil, busy, true
			},
		},
		"a lease came and ended": {func(*fixture) {}, func(f *fixture) {
			f.ended = []lease.Lease{{ID: "blue-1", Place: lease.Place{Devices: []gpu.UUID{"MIG-1"}}}}
		}},
	} {
		for busy, want := range map[float64]int{95: 0, 0: 1} {
			t.Run(fmt.Sprintf("%s, %g %%", name, busy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture()
					f.running("red-1", "MIG-1", time.Hour)
					c.before(f)
					f.busy[1] = new(busy)
					f.pass(t.Context(), f.node)
					f.pass(t.Context(), f.node)
					f.got = nil
					c.after(f)
					f.pass(t.Context(), f.node)
					if len(f.got) != want {
						t.Errorf("the account has %+v", f.got)
					}
					if u, of := f.Of("GPU-1", 1); u == nil || of != "" {
						t.Errorf("shown is %+v of %q", u, of)
					}
					f.got, f.ended = nil, nil
					if f.pass(t.Context(), f.node); len(f.got) != 1 || f.got[0].Lease != "red-1" {
						t.Errorf("an interval later the account has %+v", f.got)
					}
					if u, of := f.Of("GPU-1", 1); u == nil || of != "red-1" {
						t.Errorf("an interval later shown is %+v of %q", u, of)
					}
				})
			})
		}
	}
}

// Each GPU with instances is read once in an interval, and no other. One that has no counters is not queries again before another driver
// is loaded; one that fails is.
func TestReadingsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		reads int // in ten intervals
		why   string
	}{
		"it counts":           {nil, 10, ""},
		"it does not count":   {&gpu.Error{Op: "x", Err: gpu.ErrNotSupported}, 1, "older than Hopper"},
		"the driver lacks it": {&gpu.Error{Op: "x", Err: gpu.ErrMissing}, 1, "this driver does not report"},
		"the driver refuses":  {&gpu.Error{Op: "x", Err: gpu.ErrDenied}, 10, "cannot be read"},
		"it answers too late": {errors.New("late"), 10, "late"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				f.err = c.err
				ctx, stop := context.WithTimeout(t.Context(), 10*interval-time.Second)
				defer stop()
				f.Run(ctx)
				if want := slices.Repeat([]string{"GPU-1[1 2]"}, c.reads); !slices.Equal(f.queries, want) {
					t.Errorf("queries %q, want %d times", f.queries, c.reads)
				}
				if why := f.Unmeasured("GPU-1"); (c.why == "") != (why == "") || !strings.Contains(why, c.why) {
					t.Errorf("it is not measured because %q, want %q", why, c.why)
				}
				queries := len(f.queries)
				f.node.Epoch.Driver = "load-2"
				f.pass(t.Context(), f.node)
				if len(f.queries) != queries+1 {
					t.Error("another driver is not queries")
				}
				f.node.GPUs[0].Instances = nil
				f.pass(t.Context(), f.node)
				if u, of := f.Of("GPU-1", 1); len(f.queries) != queries+1 || f.Unmeasured("GPU-1") != "" || u != nil || of != "" {
					t.Error("a GPU without instances is queries, or shown")
				}
			})
		})
	}
}
