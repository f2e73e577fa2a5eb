package gpusim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
)

func cudaCode(err error) int {
	var e *gpusim.CUDAError
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func TestContextAdmission(t *testing.T) {
	mps := gpusim.ContextSpec{PID: 11, Device: "0", MPS: "/run/mps", Server: 10}
	for _, c := range []struct {
		name string
		mode gpu.ComputeMode
		have []gpusim.ContextSpec
		want gpusim.ContextSpec
		code int
	}{
		{"default admits several", gpu.ComputeDefault, []gpusim.ContextSpec{{PID: 1, Device: "0"}}, gpusim.ContextSpec{PID: 2, Device: "0"}, 0},
		{"prohibited admits none", gpu.ComputeProhibited, nil, gpusim.ContextSpec{PID: 1, Device: "0"}, 46},
		{"exclusive admits one", gpu.ComputeExclusiveProcess, nil, gpusim.ContextSpec{PID: 1, Device: "0"}, 0},
		{"exclusive refuses a second process", gpu.ComputeExclusiveProcess, []gpusim.ContextSpec{{PID: 1, Device: "0"}}, gpusim.ContextSpec{PID: 2, Device: "0"}, 46},
		{"exclusive admits the same process again", gpu.ComputeExclusiveProcess, []gpusim.ContextSpec{{PID: 1, Device: "0"}}, gpusim.ContextSpec{PID: 1, Device: "0"}, 0},
		{"exclusive admits clients of one server", gpu.ComputeExclusiveProcess, []gpusim.ContextSpec{mps}, gpusim.ContextSpec{PID: 12, Device: "0", MPS: "/run/mps", Server: 10}, 0},
		{"exclusive refuses a process that is no client of the server", gpu.ComputeExclusiveProcess, []gpusim.ContextSpec{mps}, gpusim.ContextSpec{PID: 12, Device: "0"}, 46},
		{"exclusive refuses another server's client", gpu.ComputeExclusiveProcess, []gpusim.ContextSpec{mps}, gpusim.ContextSpec{PID: 12, Device: "0", MPS: "/run/other", Server: 9}, 46},
		{"no such ordinal", gpu.ComputeDefault, nil, gpusim.ContextSpec{PID: 1, Device: "1"}, 101},
		{"no such GPU", gpu.ComputeDefault, nil, gpusim.ContextSpec{PID: 1, Device: "GPU-0"}, 100},
		{"no such MIG device", gpu.ComputeDefault, nil, gpusim.ContextSpec{PID: 1, Device: "MIG-0"}, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t, func(cfg *gpusim.Config) { cfg.GPUs[0].ComputeMode = c.mode }, "A30-24GB")
			for _, spec := range c.have {
				open(t, n, spec)
			}
			got, err := n.OpenContext(c.want)
			if got != nil {
				defer got.Close()
			}
			if cudaCode(err) != c.code {
				t.Errorf("%v, want CUDA error %d", err, c.code)
			}
		})
	}
}

func TestContextsOfAGPUInMIGMode(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	d, ids := port(t, n)
	if _, err := n.OpenContext(gpusim.ContextSpec{PID: 1, Device: "0"}); cudaCode(err) != 100 {
		t.Errorf("without an instance: %v", err)
	}
	in := create(t, d, ids[0], 9, 4, 4)
	if _, err := n.OpenContext(gpusim.ContextSpec{PID: 1, Device: string(ids[0])}); cudaCode(err) != 100 {
		t.Errorf("on the parent: %v", err)
	}
	for _, device := range []string{string(in.Compute[0].UUID), "0"} {
		c := open(t, n, gpusim.ContextSpec{PID: 1, Device: device})
		// 3 + 135·minor + 9·gi, and one more for the first compute instance.
		if got, want := c.Devices(), (gpusim.Devices{Minor: 0, GI: 3 + 9*2, CI: 3 + 9*2 + 1}); got != want {
			t.Errorf("device nodes of %s: %+v, want %+v", device, got, want)
		}
	}
}

func TestMemoryIsCounted(t *testing.T) {
	const overhead = 300 * gpusim.MiB
	n := node(t, withMIG, "A100-SXM4-40GB")
	d, ids := port(t, n)
	small := create(t, d, ids[0], 19, 0, 1)
	a := open(t, n, gpusim.ContextSpec{PID: 1, Device: string(small.Compute[0].UUID)})
	limited := open(t, n, gpusim.ContextSpec{PID: 2, Device: string(small.Compute[0].UUID), Limit: 1024 * gpusim.MiB})
	for _, c := range []struct {
		name string
		do   func() error
		code int
		used uint64 // MiB in addition to the two contexts
	}{
		{"nothing", func() error { return nil }, 0, 0},
		{"3 GiB", func() error { return a.Alloc(3072 * gpusim.MiB) }, 0, 3072},
		{"more than the instance has", func() error { return a.Alloc(1300 * gpusim.MiB) }, 2, 3072},
		{"more than the client's limit", func() error { return limited.Alloc(800 * gpusim.MiB) }, 2, 3072},
		{"up to the client's limit", func() error { return limited.Alloc(724 * gpusim.MiB) }, 0, 3796},
		{"half freed", func() error { return a.Free(1536 * gpusim.MiB) }, 0, 2260},
		{"more freed than allocated", func() error { return a.Free(1537 * gpusim.MiB) }, 1, 2260},
	} {
		if err := c.do(); cudaCode(err) != c.code {
			t.Fatalf("%s: %v, want CUDA error %d", c.name, err, c.code)
		}
		s, err := d.Snapshot(t.Context(), ids[0])
		if err != nil {
			t.Fatal(err)
		}
		used := c.used*gpusim.MiB + 2*overhead
		for where, m := range map[string]gpu.Memory{"GPU": s.Memory, "instance": s.Instances[0].Memory} {
			if m.Used != used || m.Total != m.Used+m.Free+m.Reserved {
				t.Errorf("%s: %s: %+v, want %d used", c.name, where, m, used)
			}
		}
	}
	a.Close()
	limited.Close()
	if m, err := d.Memory(t.Context(), ids[0]); err != nil || m.Used != 0 {
		t.Errorf("after Close: %+v, %v", m, err)
	}
	if err := a.Alloc(1); cudaCode(err) == 0 {
		t.Error("a closed context allocates")
	}
}

func TestProcessLists(t *testing.T) {
	n := node(t, nil, "A30-24GB")
	d, ids := port(t, n)
	open(t, n, gpusim.ContextSpec{PID: 30, Device: "0"})
	open(t, n, gpusim.ContextSpec{PID: 30, Device: "0"})
	open(t, n, gpusim.ContextSpec{PID: 21, Device: "0", MPS: "/run/mps", Server: 20})
	open(t, n, gpusim.ContextSpec{PID: 22, Device: "0", MPS: "/run/mps", Server: 20})
	mib := func(n uint64) *uint64 { n *= gpusim.MiB; return &n }
	want := []gpu.Process{
		{PID: 20, Kind: gpu.ComputeProcess, Memory: mib(30)}, // memory of the server
		{PID: 21, Kind: gpu.MPSProcess, Memory: mib(300)},
		{PID: 22, Kind: gpu.MPSProcess, Memory: mib(300)},
		{PID: 30, Kind: gpu.ComputeProcess, Memory: mib(600)},
	}
	got, err := d.Processes(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m, err := d.Memory(t.Context(), ids[0]); err != nil || m.Used != 1230*gpusim.MiB {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestUnknownProcessMemoryIsNotZero(t *testing.T) {
	n := node(t, func(c *gpusim.Config) { c.HideProcessMemory = true }, "A30-24GB")
	d, ids := port(t, n)
	open(t, n, gpusim.ContextSpec{PID: 30, Device: "0"})
	if got, err := d.Processes(t.Context(), ids[0]); err != nil || len(got) != 1 || got[0].Memory != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestXIDs(t *testing.T) {
	type ctx struct {
		spec gpusim.ContextSpec
		dies bool
	}
	for _, c := range []struct {
		name     string
		xid, pid int
		contexts []ctx
		reset    int
	}{
		{"an application's fault", 31, 1, []ctx{{gpusim.ContextSpec{PID: 1, Device: "0"}, true}, {gpusim.ContextSpec{PID: 2, Device: "0"}, false}}, 0},
		{"a fault of one client of an MPS server", 13, 1, []ctx{
			{gpusim.ContextSpec{PID: 1, Device: "0", MPS: "/m"}, true},
			{gpusim.ContextSpec{PID: 2, Device: "0", MPS: "/m"}, true},
			{gpusim.ContextSpec{PID: 3, Device: "0"}, false},
		}, 0},
		{"one without consequence", 43, 1, []ctx{{gpusim.ContextSpec{PID: 1, Device: "0"}, false}}, 0},
		{"one that needs a reset", 95, 0, []ctx{{gpusim.ContextSpec{PID: 1, Device: "0"}, true}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t, nil, "A30-24GB")
			var lines []string
			n.SetHooks(gpusim.Hooks{Kernel: func(_ int, text string) { lines = append(lines, text) }})
			var opened []*gpusim.Context
			for _, k := range c.contexts {
				opened = append(opened, open(t, n, k.spec))
			}
			if err := n.XID("0", c.xid, c.pid, "train"); err != nil {
				t.Fatal(err)
			}
			for i, k := range c.contexts {
				if dead := opened[i].Alloc(1) != nil; dead != k.dies {
					t.Errorf("context %+v: dead %v, want %v", k.spec, dead, k.dies)
				}
			}
			if len(lines) != 1 {
				t.Errorf("kernel log %q", lines)
			}
			if got := n.View(0).GPUs[0].Recovery; got != c.reset {
				t.Errorf("recovery action %d, want %d", got, c.reset)
			}
			_, err := n.OpenContext(gpusim.ContextSpec{PID: 5, Device: "0"})
			if (err != nil) != (c.reset != 0) {
				t.Errorf("a new context: %v", err)
			}
		})
	}
}

// TestQueuesLiveInTheServer: a frozen process stops submitting, and its queued kernels still run.
func TestQueuesLiveInTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := node(t, nil, "A30-24GB")
		d, ids := port(t, n)
		c := open(t, n, gpusim.ContextSpec{PID: 7, Device: "0"})
		c.SetQueue(200)
		start := time.Now()
		if err := c.Launch(t.Context(), 5*time.Millisecond, 200); err != nil || time.Since(start) != 0 {
			t.Fatalf("filling the queue took %v: %v", time.Since(start), err)
		}
		if err := c.Launch(t.Context(), 5*time.Millisecond, 200); err != nil || time.Since(start) < 500*time.Millisecond {
			t.Fatalf("the queue accepted the second half after %v: %v", time.Since(start), err)
		}
		if err := c.Sync(t.Context()); err != nil || time.Since(start).Round(time.Millisecond) != 2*time.Second {
			t.Fatalf("drained after %v: %v", time.Since(start), err)
		}
		if got := n.View(0).GPUs[0].Busy[7]; got < 1.99 || got > 2.01 {
			t.Errorf("busy for %v s, want 2", got)
		}
		samples, newest, err := d.Utilization(t.Context(), ids[0], 0)
		if err != nil || len(samples) != 1 || samples[0].PID != 7 || samples[0].SM < 95 {
			t.Errorf("samples %+v, %v", samples, err)
		}
		if again, same, err := d.Utilization(t.Context(), ids[0], newest); err != nil || len(again) != 0 || same != newest {
			t.Errorf("no new samples: %+v, %d, %v", again, same, err)
		}
	})
}

func TestSamplesPerProcessShareTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, raw := range []bool{false, true} {
			n := node(t, func(c *gpusim.Config) { c.RawSamples = raw }, "A30-24GB")
			d, ids := port(t, n)
			for pid := 1; pid <= 2; pid++ {
				c := open(t, n, gpusim.ContextSpec{PID: pid, Device: "0"})
				if err := c.Launch(t.Context(), 30*time.Millisecond, 500); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(12 * time.Second)
			samples, _, err := d.Utilization(t.Context(), ids[0], 0)
			if err != nil {
				t.Fatal(err)
			}
			sum := 0
			for _, s := range samples {
				sum += s.SM
			}
			if raw && len(samples) != 72 || !raw && (len(samples) != 2 || sum < 98 || sum > 100) {
				t.Errorf("raw %v: %d samples, %d %% in all", raw, len(samples), sum)
			}
		}
	})
}

func TestMIGUtilizationIsNotSupported(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	d, ids := port(t, n)
	if _, _, err := d.Utilization(context.Background(), ids[0], 0); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("%v", err)
	}
	if s, err := d.Snapshot(t.Context(), ids[0]); err != nil || s.Utilization != nil {
		t.Errorf("%v, %v", s.Utilization, err)
	}
}
