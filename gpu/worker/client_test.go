package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
)

// TestEveryOperation runs every operation through a worker and compares arguments and results.
func TestEveryOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA, gpuB)
		c, _ := newTestClient(t, n)
		ctx := t.Context()

		check := func(what string, got, want any, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", what, d)
			}
		}
		node, err := c.Node(ctx)
		check("node", node, gpu.NodeInfo{DriverVersion: "580.1", GPUs: []gpu.Identity{{UUID: gpuA}, {UUID: gpuB, Index: 1, Minor: 1}}}, err)
		snap, err := c.Snapshot(ctx, gpuA)
		check("snapshot", snap, gpu.Snapshot{Identity: gpu.Identity{UUID: gpuA}}, err)
		prof, err := c.Profiles(ctx, gpuA)
		check("profiles", prof, gpu.Profiles{Width: 8}, err)
		mem, err := c.Memory(ctx, gpuA)
		check("memory", mem, gpu.Memory{Total: 40 << 30}, err)
		procs, err := c.Processes(ctx, gpuA)
		check("processes", procs, []gpu.Process{{PID: 7}}, err)
		procs, err = c.InstanceProcesses(ctx, gpuA, 5)
		check("processes of an instance", procs, []gpu.Process{{PID: 7, GI: new(uint32(5))}}, err)
		samples, newest, err := c.Utilization(ctx, gpuA, 41)
		check("samples", samples, []gpu.UtilSample{{PID: 7, Time: 42}}, err)
		check("newest", newest, uint64(42), err)
		series, err := c.UtilizationSeries(ctx, gpuA, 41)
		check("series", series, gpu.Series{Samples: []gpu.SeriesSample{{Time: 42, Percent: 30}}, Newest: 42}, err)
		limit, err := c.MemoryLimit(ctx, gpuA, "/a/b")
		check("MemoryLimit", limit, gpu.MemoryLimit{Hard: new(uint64(4)), Used: 5}, err)
		err = errors.Join(c.SetMemoryLimit(ctx, gpuA, "/a/b", new(uint64(1))), c.SetMemoryLimit(ctx, gpuA, "/none", nil))
		check("SetMemoryLimit", nil, nil, err)
		health, err := c.Health(ctx, gpuA)
		check(
			"Health", health, gpu.Health{Temperature: new(71), Throttle: []string{}, Power: &gpu.Power{Limit: 300_000, Max: 400_000}},
			err,
		)
		sensors, err := c.Sensors(ctx, gpuA)
		check("Sensors", sensors, gpu.Sensors{Temperature: new(71), Throttle: []string{}, Clocks: &gpu.Clocks{SM: 1410}}, err)
		use, err := c.InstanceUse(ctx, gpuA, []uint32{7})
		check("InstanceUse", []gpu.InstanceUse{{GI: 7, Length: 10 * time.Second, Busy: new(37.5)}}, use, err)
		check("SetPowerLimit", nil, nil, c.SetPowerLimit(ctx, gpuA, 300_000))
		links, err := c.NVLinks(ctx, gpuA)
		check("NVLinks", links, gpu.NVLinks{Peers: []string{"0000:4e:00.0"}, Switches: 1, Unknown: 2, Down: 3}, err)
		gi, err := c.CreateInstance(ctx, gpuA, gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: 4, Size: 1}})
		check("create", gi, gpu.Instance{ID: 9, ProfileID: 19, Placement: gpu.Placement{Start: 4, Size: 1}}, err)
		gi, err = c.CompleteInstance(ctx, gpuA, 5, []gpu.NewCompute{{Slices: 1}, {Slices: 2}})
		check("complete", gi, gpu.Instance{ID: 5, Compute: make([]gpu.ComputeInstance, 2)}, err)
		check("destroy", nil, nil, c.DestroyInstance(ctx, gpuA, 5))
		check("compute mode", nil, nil, c.SetComputeMode(ctx, gpuA, gpu.ComputeProhibited))
		mode, err := c.SetMIGMode(ctx, gpuA, true)
		if err != nil || !errors.Is(mode.Activation, gpu.ErrInUse) || !mode.Pending || mode.Minor != 3 {
			t.Errorf("mode = %+v, %v; want pending, minor 3 and ErrInUse", mode, err)
		}

		st := c.Stats()
		if st.Writes != 8 || st.Messages != 22 { // two of the messages are readings of the node
			t.Errorf("writes %d, messages %d; want 8 and 22", st.Writes, st.Messages)
		}
		if o := st.Ops[OpMemory]; o.Count != 1 || len(o.Buckets) != len(st.Bounds)+1 {
			t.Errorf("latency of memory = %+v; want one in %d buckets", o, len(st.Bounds)+1)
		}
	})
}

// TestErrorsKeepTheirType sends each sentinel through a worker.
func TestErrorsKeepTheirType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, _ := newTestClient(t, n)
		for _, s := range sentinels() {
			n.set(func(n *fakeNode) {
				n.failing = &gpu.Error{Op: "create instance", GPU: gpuA, Code: 23, Err: s.err}
			})
			if _, err := c.Node(t.Context()); !errors.Is(err, s.err) { // the first call also starts a worker
				t.Fatalf("node: %v; want %v", err, s.err)
			}
			n.set(func(n *fakeNode) { n.failing = nil })
			time.Sleep(time.Minute) // fake time: past the pause between starts
			if _, err := c.Memory(t.Context(), gpuA); err != nil {
				t.Fatalf("memory: %v", err)
			}
			n.set(func(n *fakeNode) {
				n.failing = &gpu.Error{Op: "create instance", GPU: gpuA, Code: 23, Err: fmt.Errorf("%w: slot 4", s.err)}
			})
			_, err := c.CreateInstance(t.Context(), gpuA, gpu.NewInstance{})
			want := &gpu.Error{Op: "create instance", GPU: gpuA, Code: 23, Err: s.err}
			var got *gpu.Error
			if !errors.Is(err, s.err) || !errors.As(err, &got) || got.Code != 23 || got.GPU != gpuA {
				t.Errorf("%s: %#v; want %v", s.kind, err, want)
			}
			if want := "cannot create instance on GPU-aaaa: " + s.err.Error() + ": slot 4 (NVML code 23)"; err.Error() != want {
				t.Errorf("text = %q; want %q", err, want)
			}
			n.set(func(n *fakeNode) { n.failing = nil })
		}
	})
}

// TestHangMakesOneGPUUnresponsive lets one GPU hang and expects that the other one still works.
func TestHangMakesOneGPUUnresponsive(t *testing.T) {
	tests := []struct {
		name  string
		op    Op
		limit time.Duration
		call  func(context.Context, *Client) error
	}{
		{"read", OpSnapshot, 2 * time.Second, func(ctx context.Context, c *Client) error {
			_, err := c.Snapshot(ctx, gpuA)
			return err
		}},
		{"write", OpDestroyInstance, 30 * time.Second, func(ctx context.Context, c *Client) error {
			return c.DestroyInstance(ctx, gpuA, 1)
		}},
		{"mode", OpSetMIGMode, 60 * time.Second, func(ctx context.Context, c *Client) error {
			_, err := c.SetMIGMode(ctx, gpuA, true)
			return err
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNode(gpuA, gpuB)
				c, l := newTestClient(t, n)
				if _, err := c.Node(t.Context()); err != nil {
					t.Fatal(err)
				}
				hangOnce(t, n, tt.op, gpuA)
				began := time.Now()
				if err := tt.call(t.Context(), c); !errors.Is(err, gpu.ErrTimeout) {
					t.Fatalf("hung operation: %v; want ErrTimeout", err)
				}
				if elapsed := time.Since(began); elapsed != tt.limit {
					t.Errorf("hung operation took %v; want %v", elapsed, tt.limit)
				}
				if _, err := c.Memory(t.Context(), gpuB); err != nil {
					t.Errorf("other GPU: %v", err)
				}
				if _, excluded := flags(l.argv[1]); !cmp.Equal(excluded, []gpu.UUID{gpuA}) {
					t.Errorf("second worker excludes %v; want %v", excluded, gpuA)
				}

				began = time.Now()
				if _, err := c.Memory(t.Context(), gpuA); !errors.Is(err, gpu.ErrTimeout) {
					t.Errorf("unresponsive GPU: %v; want ErrTimeout", err)
				}
				if elapsed := time.Since(began); elapsed != 0 {
					t.Errorf("unresponsive GPU took %v to fail; want no time", elapsed)
				}
				info, err := c.Node(t.Context())
				if err != nil || len(info.GPUs) != 2 || info.GPUs[0].UUID != gpuA || info.GPUs[0].Error == "" || info.GPUs[1].Error != "" {
					t.Errorf("node = %+v, %v; want both GPUs and an error on the first", info.GPUs, err)
				}
				if st := c.Status(); !cmp.Equal(st.Unresponsive, []gpu.UUID{gpuA}) || st.Stuck {
					t.Errorf("status = %+v; want one unresponsive GPU", st)
				}

				if err := c.Retry(t.Context(), gpuA); err != nil {
					t.Fatalf("Retry: %v", err)
				}
				if _, err := c.Memory(t.Context(), gpuA); err != nil {
					t.Errorf("GPU that answers again: %v", err)
				}
				if st := c.Status(); len(st.Unresponsive) != 0 {
					t.Errorf("status = %+v; want no unresponsive GPU", st)
				}
				if got := l.count(); got != 3 {
					t.Errorf("%d workers; want 3: the first, one without the GPU, one with it", got)
				}
			})
		})
	}
}

// TestOtherGPUsWhenWorkerAbandoned abandons a worker while an operation of another GPU is running.
func TestOtherGPUsWhenWorkerAbandoned(t *testing.T) {
	tests := []struct {
		name  string
		hung  Op // on the first GPU
		op    Op // on the second one, at the same time
		call  func(context.Context, *Client) error
		limit time.Duration
		want  error
		times int // that op reaches the hardware
	}{
		{
			"a reading is repeated", OpSnapshot, OpProfiles,
			func(ctx context.Context, c *Client) error { _, err := c.Profiles(ctx, gpuB); return err },
			2 * time.Second, nil, 2,
		},
		{
			"a change is not repeated", OpSetComputeMode, OpSetMIGMode,
			func(ctx context.Context, c *Client) error { _, err := c.SetMIGMode(ctx, gpuB, true); return err },
			30 * time.Second, gpu.ErrTimeout, 1,
		},
		{
			// The driver may hold a lock during a change: a reading that waits for it does not make its GPU unresponsive.
			"a reading behind a change does not time out", OpCreateInstance, OpMemory,
			func(ctx context.Context, c *Client) error { _, err := c.Memory(ctx, gpuB); return err },
			30 * time.Second, nil, 2,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNode(gpuA, gpuB)
				c, _ := newTestClient(t, n)
				if _, err := c.Node(t.Context()); err != nil {
					t.Fatal(err)
				}
				release := make(chan struct{})
				t.Cleanup(func() { close(release) })
				first := map[Op]bool{tt.hung: true, tt.op: true}
				n.set(func(n *fakeNode) {
					n.hang = func(op Op, _ gpu.UUID) <-chan struct{} {
						n.mu.Lock()
						defer n.mu.Unlock()
						if !first[op] {
							return nil
						}
						first[op] = false
						return release
					}
				})
				began := time.Now()
				var hung, other error
				var calls sync.WaitGroup
				calls.Go(func() {
					switch tt.hung {
					case OpSnapshot:
						_, hung = c.Snapshot(t.Context(), gpuA)
					case OpSetComputeMode:
						hung = c.SetComputeMode(t.Context(), gpuA, gpu.ComputeDefault)
					case OpCreateInstance:
						_, hung = c.CreateInstance(t.Context(), gpuA, gpu.NewInstance{})
					}
				})
				calls.Go(func() { other = tt.call(t.Context(), c) })
				calls.Wait()
				if !errors.Is(hung, gpu.ErrTimeout) || time.Since(began) != tt.limit {
					t.Errorf("hung: %v after %v; want ErrTimeout after %v", hung, time.Since(began), tt.limit)
				}
				if !errors.Is(other, tt.want) {
					t.Errorf("other GPU: %v; want %v", other, tt.want)
				}
				if got := n.count(tt.op, gpuB); got != tt.times {
					t.Errorf("the operation on the other GPU reached the hardware %d times; want %d", got, tt.times)
				}
				if st := c.Status(); !cmp.Equal(st.Unresponsive, []gpu.UUID{gpuA}) {
					t.Errorf("unresponsive = %v; want only the GPU that hung", st.Unresponsive)
				}
			})
		})
	}
}

// TestThreadsDoNotBlockEachOther keeps one GPU busy and reads another one.
func TestThreadsDoNotBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA, gpuB)
		c, l := newTestClient(t, n)
		release := hangAlways(n, OpCreateInstance, gpuA)
		var err error
		var busy sync.WaitGroup
		busy.Go(func() { _, err = c.CreateInstance(t.Context(), gpuA, gpu.NewInstance{}) })
		synctest.Wait()
		for range 10 {
			if _, err := c.Memory(t.Context(), gpuB); err != nil {
				t.Fatal(err)
			}
		}
		// A caller that waits for the busy GPU waits until its own deadline, which makes no GPU unresponsive.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := c.Memory(ctx, gpuA); !errors.Is(err, gpu.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("behind a busy GPU: %v; want its own deadline", err)
		}
		release()
		busy.Wait()
		if err != nil {
			t.Errorf("the long operation: %v", err)
		}
		if st := c.Status(); len(st.Unresponsive) != 0 || l.count() != 1 {
			t.Errorf("status %+v after %d workers; want no unresponsive GPU and one worker", st, l.count())
		}
	})
}

// TestCallerGivesUp checks that the deadline of an operation applies after its caller gives up.
func TestCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, _ := newTestClient(t, n)
		if _, err := c.Node(t.Context()); err != nil {
			t.Fatal(err)
		}
		hangOnce(t, n, OpMemory, gpuA)
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		var calls sync.WaitGroup
		calls.Go(func() { _, err = c.Memory(ctx, gpuA) })
		synctest.Wait()
		cancel()
		calls.Wait()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v; want context.Canceled", err)
		}
		if st := c.Status(); len(st.Unresponsive) != 0 {
			t.Errorf("unresponsive = %v before the deadline", st.Unresponsive)
		}
		time.Sleep(2 * time.Second) // fake time
		synctest.Wait()
		if st := c.Status(); !cmp.Equal(st.Unresponsive, []gpu.UUID{gpuA}) {
			t.Errorf("unresponsive = %v after the deadline; want the GPU that hung", st.Unresponsive)
		}
	})
}

// TestCancelledBeforeItStarts checks that a change is not made after its caller gives up.
func TestCancelledBeforeItStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, _ := newTestClient(t, n)
		release := hangAlways(n, OpProfiles, gpuA)
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = c.Profiles(t.Context(), gpuA) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.DestroyInstance(ctx, gpuA, 1); !errors.Is(err, gpu.ErrTimeout) {
			t.Errorf("DestroyInstance: %v; want its own deadline", err)
		}
		release()
		calls.Wait()
		synctest.Wait()
		if got := n.count(OpDestroyInstance, gpuA); got != 0 {
			t.Errorf("the change was made %d times after its caller gave up", got)
		}
	})
}

// TestCrash kills the worker during a reading and during a change.
func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, l := newTestClient(t, n)
		if _, err := c.Node(t.Context()); err != nil {
			t.Fatal(err)
		}
		crashDuring := func(op Op, call func() error) error {
			t.Helper()
			hangOnce(t, n, op, gpuA)
			var err error
			var calls sync.WaitGroup
			calls.Go(func() { err = call() })
			synctest.Wait()
			if err := l.last().Kill(); err != nil {
				t.Fatal(err)
			}
			calls.Wait()
			return err
		}
		if err := crashDuring(OpSnapshot, func() error { _, err := c.Snapshot(t.Context(), gpuA); return err }); err != nil {
			t.Errorf("reading: %v; want it to be repeated", err)
		}
		if got := n.count(OpSnapshot, gpuA); got != 2 {
			t.Errorf("the reading reached the hardware %d times; want 2", got)
		}
		err := crashDuring(OpCreateInstance, func() error { _, err := c.CreateInstance(t.Context(), gpuA, gpu.NewInstance{}); return err })
		if !errors.Is(err, gpu.ErrTimeout) {
			t.Errorf("change: %v; want ErrTimeout", err)
		}
		if got := n.count(OpCreateInstance, gpuA); got != 1 {
			t.Errorf("the change reached the hardware %d times; want 1", got)
		}
		if st := c.Stats(); st.Crashes != 2 {
			t.Errorf("%d crashes counted; want 2", st.Crashes)
		}
		if st := c.Status(); len(st.Unresponsive) != 0 {
			t.Errorf("unresponsive = %v; a crash makes no GPU unresponsive", st.Unresponsive)
		}
	})
}

// TestGPUThatCrashesWorkers lets every reading of one GPU kill the worker while two others are read: these succeed, and
// the GPU is excluded in the end.
func TestGPUThatCrashesWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gpuC := gpu.UUID("GPU-cccc")
		n := newFakeNode(gpuA, gpuB, gpuC)
		c, l := newTestClient(t, n)
		if _, err := c.Node(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.set(func(n *fakeNode) {
			n.hang = func(op Op, id gpu.UUID) <-chan struct{} {
				if op == OpMemory && id == gpuA {
					_ = l.last().Kill() // as a call of a symbol that the library lacks
				}
				time.Sleep(time.Millisecond) // fake time: the others are running then
				return nil
			}
		})
		var crashing error
		for range 5 {
			var calls sync.WaitGroup
			calls.Go(func() { _, crashing = c.Memory(t.Context(), gpuA) })
			for _, id := range []gpu.UUID{gpuB, gpuC} {
				calls.Go(func() {
					for range 5 {
						if _, err := c.Snapshot(t.Context(), id); err != nil {
							t.Errorf("healthy %s: %v", id, err)
						}
					}
				})
			}
			calls.Wait()
		}
		if !errors.Is(crashing, gpu.ErrTimeout) || !strings.Contains(crashing.Error(), "excluded until") {
			t.Errorf("crashing GPU: %v; want it to be excluded", crashing)
		}
		if st := c.Status(); !cmp.Equal(st.Unresponsive, []gpu.UUID{gpuA}) || st.Stuck {
			t.Errorf("status = %+v; want the one GPU unresponsive", st)
		}
		if got := l.count(); got > 6 {
			t.Errorf("%d workers; want at most 6", got)
		}
	})
}

// TestDriverReloaded lets a driver report that it cannot be used any more: another worker opens it again.
func TestDriverReloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, l := newTestClient(t, n)
		if _, err := c.Node(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.set(func(n *fakeNode) {
			n.hang = func(op Op, _ gpu.UUID) <-chan struct{} {
				// The reload happens during the first reading, and the driver works for the next worker.
				n.set(func(n *fakeNode) {
					n.failing = nil
					if op == OpMemory && n.opened == 1 {
						n.failing = &gpu.Error{Op: "x", Code: unusableCode, Err: gpu.ErrUnknown}
					}
				})
				return nil
			}
		})
		if _, err := c.Memory(t.Context(), gpuA); err != nil {
			t.Errorf("reading during a reload: %v; want it to be repeated", err)
		}
		if l.count() != 2 || n.count(OpMemory, gpuA) != 2 {
			t.Errorf("%d workers, %d readings; want 2 and 2", l.count(), n.count(OpMemory, gpuA))
		}
	})
}

// TestStuck lets every worker hang while it opens the driver.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, l := newTestClient(t, n)
		release := make(chan struct{})
		var hang sync.Mutex
		hanging := true
		l.before = func(int) bool {
			hang.Lock()
			h := hanging
			hang.Unlock()
			if h {
				<-release
			}
			return !h
		}
		for i := range 2 {
			began := time.Now()
			if _, err := c.Node(t.Context()); !errors.Is(err, gpu.ErrTimeout) || time.Since(began) != 10*time.Second {
				t.Errorf("start %d: %v after %v; want ErrTimeout after 10s", i, err, time.Since(began))
			}
		}
		for range 3 {
			began := time.Now()
			if _, err := c.Memory(t.Context(), gpuA); !errors.Is(err, gpu.ErrStuck) || time.Since(began) != 0 {
				t.Errorf("stuck: %v after %v; want ErrStuck at once", err, time.Since(began))
			}
		}
		if !c.Status().Stuck || l.count() != 2 {
			t.Errorf("status %+v after %d workers; want stuck after 2", c.Status(), l.count())
		}
		hang.Lock()
		hanging = false
		hang.Unlock()
		close(release)
		if err := c.Retry(t.Context(), ""); err != nil {
			t.Errorf("Retry: %v", err)
		}
		if c.Status().Stuck {
			t.Error("still stuck after a successful retry")
		}
	})
}

// TestHangAtStartNamesTheGPU lets one GPU hang while the node is read: the next worker excludes it.
func TestHangAtStartNamesTheGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA, gpuB)
		c, l := newTestClient(t, n)
		release := hangAlways(n, OpNode, gpuB)
		defer release()
		if _, err := c.Node(t.Context()); !errors.Is(err, gpu.ErrTimeout) {
			t.Fatalf("first start: %v; want ErrTimeout", err)
		}
		info, err := c.Node(t.Context())
		if err != nil || len(info.GPUs) != 2 {
			t.Fatalf("second start: %+v, %v; want both GPUs", info, err)
		}
		if st := c.Status(); !cmp.Equal(st.Unresponsive, []gpu.UUID{gpuB}) || st.Stuck || l.count() != 2 {
			t.Errorf("status %+v after %d workers; want the second GPU unresponsive after two", st, l.count())
		}
		if _, err := c.Memory(t.Context(), gpuA); err != nil {
			t.Errorf("healthy GPU: %v", err)
		}
	})
}

// TestDriverMissing checks that a driver that cannot be opened is reported with its error type, and that the client does
// not try in a busy loop.
func TestDriverMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		n.openErr = &gpu.Error{Op: "open the driver", Code: 9, Err: gpu.ErrNotLoaded}
		c, l := newTestClient(t, n)
		for range 100 {
			_, err := c.Memory(t.Context(), gpuA)
			var e *gpu.Error
			if !errors.Is(err, gpu.ErrNotLoaded) || !errors.As(err, &e) || e.Code != 9 || e.Op != "read the memory" {
				t.Fatalf("error = %#v; want ErrNotLoaded with code 9", err)
			}
			time.Sleep(100 * time.Millisecond) // fake time: 10 s in all
		}
		if got := l.count(); got < 4 || got > 7 {
			t.Errorf("%d workers in 10 s; want the pause to double from 200 ms", got)
		}
		n.set(func(n *fakeNode) { n.openErr = nil })
		time.Sleep(time.Minute)
		if _, err := c.Memory(t.Context(), gpuA); err != nil {
			t.Errorf("driver that was loaded in the meantime: %v", err)
		}
		if st := c.Status(); st.Failure != "" {
			t.Errorf("failure = %q after a successful start", st.Failure)
		}
	})
}

// TestWorkerEndsAtStart lets every worker end before it connects.
func TestWorkerEndsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l := newTestClient(t, newFakeNode(gpuA))
		l.before = func(int) bool { return false }
		began := time.Now()
		if _, err := c.Node(t.Context()); !errors.Is(err, gpu.ErrUnknown) || time.Since(began) != 0 {
			t.Errorf("error = %v after %v; want ErrUnknown at once", err, time.Since(began))
		}
		if c.Status().Stuck {
			t.Error("stuck, but nothing hung")
		}
	})
}

// TestEvents reads events before and after a worker is killed.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, l := newTestClient(t, n)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan gpu.Event, 16)
		ended := make(chan error, 1)
		go func() { ended <- c.Events(ctx, func(e gpu.Event) { got <- e }) }()
		synctest.Wait()
		gi := uint32(3)
		want := gpu.Event{GPU: gpuA, Kind: gpu.EventXID, XID: 31, GI: &gi}
		n.events[0] <- want
		if d := cmp.Diff(want, <-got); d != "" {
			t.Errorf("event (-want +got):\n%s", d)
		}
		if err := l.last().Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // fake time: past the pause
		synctest.Wait()
		n.events[1] <- want
		if e := <-got; e.XID != 31 {
			t.Errorf("event = %+v after the worker was replaced", e)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Events ended with %v; want context.Canceled", err)
		}
	})
}

// TestEventsThatCrashWorkers lets the events operation kill every worker.
func TestEventsThatCrashWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, l := newTestClient(t, n)
		n.set(func(n *fakeNode) { n.watched = func() { _ = l.last().Kill() } })
		err := c.Events(t.Context(), func(gpu.Event) {})
		if !errors.Is(err, gpu.ErrUnknown) || l.count() != maxCrashes {
			t.Errorf("Events: %v after %d workers; want ErrUnknown after %d", err, l.count(), maxCrashes)
		}
	})
}

// TestSlowEventReader checks that a consumer that does not return does not block other operations, and that lost events
// are counted.
func TestSlowEventReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, _ := newTestClient(t, n)
		ctx, cancel := context.WithCancel(t.Context())
		block := make(chan struct{})
		ended := make(chan error, 1)
		go func() { ended <- c.Events(ctx, func(gpu.Event) { <-block }) }()
		synctest.Wait()
		for range queueDepth + 100 {
			n.events[0] <- gpu.Event{GPU: gpuA}
		}
		if _, err := c.Memory(t.Context(), gpuA); err != nil {
			t.Error(err)
		}
		if st := c.Stats(); st.EventsDropped == 0 || st.EventsDropped > 100 {
			t.Errorf("%d events dropped; want up to 100", st.EventsDropped)
		}
		cancel()
		close(block)
		<-ended
	})
}

// TestRetireWhileBusy checks that replacing a worker for a retry does not disturb running operations.
func TestRetireWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA, gpuB)
		c, _ := newTestClient(t, n)
		if _, err := c.Node(t.Context()); err != nil {
			t.Fatal(err)
		}
		hangOnce(t, n, OpMemory, gpuA)
		if _, err := c.Memory(t.Context(), gpuA); !errors.Is(err, gpu.ErrTimeout) {
			t.Fatalf("hung: %v", err)
		}
		release := hangAlways(n, OpCreateInstance, gpuB)
		var err error
		var busy sync.WaitGroup
		busy.Go(func() { _, err = c.CreateInstance(t.Context(), gpuB, gpu.NewInstance{}) })
		synctest.Wait()
		if err := c.Retry(t.Context(), gpuA); err != nil {
			t.Errorf("Retry: %v", err)
		}
		release()
		busy.Wait()
		if err != nil {
			t.Errorf("running change: %v", err)
		}
		if st := c.Stats(); st.Crashes != 0 {
			t.Errorf("%d crashes counted; a retired worker did not crash", st.Crashes)
		}
	})
}

// TestCloseWhileRetiring closes a client while a replaced worker still has an operation that hangs.
func TestCloseWhileRetiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA, gpuB)
		c, l := newTestClient(t, n)
		if _, err := c.Node(t.Context()); err != nil {
			t.Fatal(err)
		}
		hangOnce(t, n, OpMemory, gpuA)
		if _, err := c.Memory(t.Context(), gpuA); !errors.Is(err, gpu.ErrTimeout) {
			t.Fatalf("hung: %v", err)
		}
		release := hangAlways(n, OpCreateInstance, gpuB)
		defer release()
		var err error
		var busy sync.WaitGroup
		busy.Go(func() { _, err = c.CreateInstance(t.Context(), gpuB, gpu.NewInstance{}) })
		synctest.Wait()
		if err := c.Retry(t.Context(), gpuA); err != nil {
			t.Errorf("Retry: %v", err)
		}
		began := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if elapsed := time.Since(began); elapsed > 5*time.Second {
			t.Errorf("closing took %v", elapsed)
		}
		busy.Wait()
		if !errors.Is(err, ErrClosed) || l.count() != 3 {
			t.Errorf("running change: %v with %d workers; want ErrClosed and three", err, l.count())
		}
	})
}

// TestClosed checks that a closed client refuses operations, and that Close fails running ones.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, _ := newTestClient(t, n)
		hangOnce(t, n, OpProfiles, gpuA)
		var err error
		var calls sync.WaitGroup
		calls.Go(func() { _, err = c.Profiles(t.Context(), gpuA) })
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		calls.Wait()
		if !errors.Is(err, ErrClosed) {
			t.Errorf("running: %v; want ErrClosed", err)
		}
		if _, err := c.Memory(t.Context(), gpuA); !errors.Is(err, ErrClosed) {
			t.Errorf("after: %v; want ErrClosed", err)
		}
	})
}
