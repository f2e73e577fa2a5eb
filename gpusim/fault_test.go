package gpusim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
)

func TestFaultsHitTheirCall(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault gpusim.Fault
		errs  []error // of five memory reads of GPU 0
		other error   // of a memory read of GPU 1 after them
	}{
		{"the second", gpusim.Fault{Call: "nvmlDeviceGetMemoryInfo_v2", Do: "fail", Code: gpusim.InUse, Nth: 2}, []error{nil, gpu.ErrInUse, nil, nil, nil}, nil},
		{"two from the third on", gpusim.Fault{Call: "DeviceGetMem*", Do: "fail", Nth: 3, Times: 2}, []error{nil, nil, gpu.ErrUnknown, gpu.ErrUnknown, nil}, nil},
		{"every one of a GPU", gpusim.Fault{Call: "any", GPU: "0", Do: "fail", Code: gpusim.Timeout, Times: -1}, []error{gpu.ErrTimeout, gpu.ErrTimeout, gpu.ErrTimeout, gpu.ErrTimeout, gpu.ErrTimeout}, nil},
		{"every one of all", gpusim.Fault{Call: "DeviceGetMemoryInfo", Do: "fail", Times: -1}, []error{gpu.ErrUnknown, gpu.ErrUnknown, gpu.ErrUnknown, gpu.ErrUnknown, gpu.ErrUnknown}, gpu.ErrUnknown},
		{"loss", gpusim.Fault{Call: "DeviceGetMemoryInfo", Do: "lose", Nth: 2}, []error{nil, gpu.ErrLost, gpu.ErrLost, gpu.ErrLost, gpu.ErrLost}, nil},
		{"another call", gpusim.Fault{Call: "DeviceSetMigMode", Do: "fail", Times: -1}, []error{nil, nil, nil, nil, nil}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t, nil, "A30-24GB", "A30-24GB")
			d, ids := port(t, n)
			if _, err := n.AddFault(c.fault); err != nil {
				t.Fatal(err)
			}
			for i, want := range c.errs {
				if _, err := d.Memory(t.Context(), ids[0]); !errors.Is(err, want) {
					t.Errorf("read %d: %v, want %v", i+1, err, want)
				}
			}
			if _, err := d.Memory(t.Context(), ids[1]); !errors.Is(err, c.other) {
				t.Errorf("the other GPU: %v, want %v", err, c.other)
			}
		})
	}
}

func TestInvalidFaults(t *testing.T) {
	n := node(t, nil, "A30-24GB")
	for _, f := range []gpusim.Fault{{Call: "any", Do: "explode"}, {Call: "[", Do: "fail"}, {Call: "any", GPU: "7", Do: "fail"}} {
		if _, err := n.AddFault(f); err == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
}

func TestHangBlocksItsGPUOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := node(t, nil, "A30-24GB", "A30-24GB")
		d, ids := port(t, n)
		if _, err := n.AddFault(gpusim.Fault{Call: "DeviceGetMemoryInfo", GPU: "0", Do: "hang"}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := d.Memory(context.Background(), ids[0])
			done <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		// The next call on that GPU waits behind the one that hangs.
		if _, err := d.Processes(ctx, ids[0]); !errors.Is(err, gpu.ErrTimeout) {
			t.Errorf("behind the hang: %v", err)
		}
		if _, err := d.Memory(t.Context(), ids[1]); err != nil {
			t.Errorf("the other GPU: %v", err)
		}
		n.ClearFaults(0)
		if err := <-done; err != nil {
			t.Errorf("after the faults were cleared: %v", err)
		}
	})
}

// A change whose caller has ended is in the kernel: it has its effect later, before the next change of the GPU, and reads may be
// answered meanwhile.
func TestAChangeContinuesWithoutItsCaller(t *testing.T) {
	for _, c := range []struct {
		name    string
		latency time.Duration
		hang    bool // until the faults are cleared
		want    gpu.ComputeMode
	}{
		{name: "it takes long", latency: time.Minute, want: gpu.ComputeProhibited},
		{name: "it hangs, reads are answered, and another change follows", hang: true, want: gpu.ComputeExclusiveProcess},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := node(t, func(n *gpusim.Config) {
					n.Latency = map[string]time.Duration{"DeviceSetComputeMode": c.latency}
				}, "A30-24GB")
				d, ids := port(t, n)
				if c.hang {
					if _, err := n.AddFault(gpusim.Fault{Call: "DeviceSetComputeMode", Do: "hang", ReadsAnswer: true}); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := d.SetComputeMode(ctx, ids[0], gpu.ComputeProhibited); !errors.Is(err, gpu.ErrTimeout) {
					t.Fatalf("the call without an answer: %v", err)
				}
				if c.hang {
					if s, err := d.Snapshot(t.Context(), ids[0]); err != nil || s.ComputeMode != gpu.ComputeDefault {
						t.Errorf("while it hangs the mode is %s, %v", s.ComputeMode, err)
					}
					next := make(chan error, 1)
					go func() { next <- d.SetComputeMode(context.Background(), ids[0], gpu.ComputeExclusiveProcess) }()
					synctest.Wait()
					n.ClearFaults(0)
					if err := <-next; err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(2 * time.Minute) // In the virtual time of the bubble.
				if s, err := d.Snapshot(t.Context(), ids[0]); err != nil || s.ComputeMode != c.want {
					t.Errorf("the mode is %s, %v, want %s", s.ComputeMode, err, c.want)
				}
			})
		})
	}
}

// TestAFailedCreationLeavesNothing lets each call of a creation fail: no instance remains.
func TestAFailedCreationLeavesNothing(t *testing.T) {
	want := gpu.NewInstance{ProfileID: 9, Placement: gpu.Placement{Size: 4}, Compute: []gpu.NewCompute{{Slices: 2}, {Slices: 1}}}
	for nth := 1; ; nth++ {
		n := node(t, withMIG, "A100-SXM4-40GB")
		d, ids := port(t, n)
		id, err := n.AddFault(gpusim.Fault{Call: "any", GPU: "0", Do: "fail", Nth: nth, Code: gpusim.InsufficientResources})
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.CreateInstance(t.Context(), ids[0], want)
		hits := n.Faults()[0].Hits
		n.ClearFaults(id)
		if hits == 0 {
			if nth < 4 || err != nil {
				t.Fatalf("call %d was not made: %v", nth, err)
			}
			return
		}
		if !errors.Is(err, gpu.ErrInsufficientResources) {
			t.Errorf("call %d failed: %v", nth, err)
		}
		if s, err := d.Snapshot(t.Context(), ids[0]); err != nil || len(s.Instances) != 0 {
			t.Errorf("call %d failed and left %+v, %v", nth, s.Instances, err)
		}
	}
}

func TestAFaultAfterTheEffect(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	d, ids := port(t, n)
	in := create(t, d, ids[0], 19, 0, 1)
	if _, err := n.AddFault(gpusim.Fault{Call: "GpuInstanceDestroy", Do: "fail", After: true}); err != nil {
		t.Fatal(err)
	}
	if err := d.DestroyInstance(t.Context(), ids[0], in.ID); !errors.Is(err, gpu.ErrUnknown) {
		t.Fatalf("%v", err)
	}
	if s, err := d.Snapshot(t.Context(), ids[0]); err != nil || len(s.Instances) != 0 {
		t.Errorf("%+v, %v: want it removed although the call failed", s.Instances, err)
	}
}

func TestLatencyIsOnTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := node(t, func(c *gpusim.Config) {
			withMIG(c)
			c.Latency = map[string]time.Duration{"*": time.Millisecond, "DeviceCreateGpuInstance*": time.Second, "DeviceGetMemoryInfo": 0}
		}, "A100-SXM4-40GB")
		d, ids := port(t, n)
		elapsed := func(f func()) time.Duration {
			start := time.Now()
			f()
			return time.Since(start)
		}
		if got := elapsed(func() { _, _ = d.Memory(t.Context(), ids[0]) }); got != 0 {
			t.Errorf("reading the memory took %v", got)
		}
		// One call for the GPU instance, one for the compute instance, one to read both.
		if got := elapsed(func() { create(t, d, ids[0], 19, 0, 1) }); got != time.Second+2*time.Millisecond {
			t.Errorf("create took %v", got)
		}
	})
}

func TestEventsReachWaitingClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := node(t, withMIG, "A100-SXM4-40GB")
		d, ids := port(t, n)
		ctx, cancel := context.WithCancel(t.Context())
		events := make(chan gpu.Event, 16)
		ended := make(chan error, 1)
		go func() { ended <- d.Events(ctx, func(e gpu.Event) { events <- e }) }()
		if e := <-events; e.Kind != gpu.EventWatching || e.GPU != "" {
			t.Errorf("the first event: %+v", e)
		}
		in := create(t, d, ids[0], 19, 3, 1)
		if e := <-events; e.Kind != gpu.EventMIGConfig || e.GI == nil || *e.GI != in.ID {
			t.Errorf("event of the creation: %+v", e)
		}
		<-events // the event of the compute instance
		open(t, n, gpusim.ContextSpec{PID: 5, Device: string(in.Compute[0].UUID)})
		if err := n.XID("0", 31, 5, "train"); err != nil {
			t.Fatal(err)
		}
		if e := <-events; e.Kind != gpu.EventXID || e.XID != 31 || e.GPU != ids[0] || e.GI == nil || *e.GI != in.ID || e.CI == nil {
			t.Errorf("event of the XID: %+v", e)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// TestAFaultOfWrites checks that a fault of writes does not count calls that only read.
func TestAFaultOfWrites(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB", "A100-SXM4-40GB")
	d, ids := port(t, n)
	if _, err := n.AddFault(gpusim.Fault{Call: "write", GPU: "0", Do: "fail", Code: gpusim.InUse, Nth: 4}); err != nil {
		t.Fatal(err)
	}
	in := create(t, d, ids[0], 19, 0, 1) // Two writes: the instance and its compute instance.
	create(t, d, ids[1], 19, 0, 1)       // No match: another GPU.
	if _, err := d.Snapshot(t.Context(), ids[0]); err != nil {
		t.Errorf("a reading failed: %v", err)
	}
	if err := d.DestroyInstance(t.Context(), ids[0], in.ID); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("the fourth write returned %v", err)
	}
	if f := n.Faults()[0]; f.Seen != 4 || f.Hits != 1 {
		t.Errorf("%d calls matched and %d failed", f.Seen, f.Hits)
	}
}

func TestCountersCountWrites(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	d, ids := port(t, n)
	if _, err := d.Snapshot(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if c := n.Counters(); c.Writes != 0 || c.Total == 0 {
		t.Errorf("after reads: %+v", c)
	}
	create(t, d, ids[0], 19, 0, 1)
	_, err := d.CreateInstance(t.Context(), ids[0], gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Size: 1}})
	if !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Fatal(err)
	}
	c := n.Counters()
	if c.Writes != 3 || c.Failures["DeviceCreateGpuInstanceWithPlacement"] != 1 {
		t.Errorf("after one creation and one failed creation: %+v", c)
	}
}
