package gpusim_test

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
)

// The counters of an instance are those of what runs in it: half busy, and idle next to it. Boards before Hopper have none.
func TestCountersOfInstances(t *testing.T) {
	for model, supported := range map[string]bool{
		"A100-SXM4-40GB": false, "A30-24GB": false, "H100-SXM5-80GB": true, "H200-141GB": true, "GH200-96GB": true, "B200-180GB": true,
	} {
		t.Run(model, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := node(t, withMIG, model)
				d, ids := port(t, n)
				profiles, err := d.Profiles(t.Context(), ids[0])
				if err != nil {
					t.Fatal(err)
				}
				p := profiles.GI[0]
				for _, q := range profiles.GI {
					if len(q.Attributes) == 0 && q.Slices == 1 && q.Max > p.Max {
						p = q
					}
				}
				work := create(t, d, ids[0], p.ID, p.Placements[0].Start, p.Placements[0].Size)
				idle := create(t, d, ids[0], p.ID, p.Placements[1].Start, p.Placements[1].Size)
				both := []uint32{work.ID, idle.ID}
				if use, err := d.InstanceUse(t.Context(), ids[0], both); len(use) != 0 || supported != (err == nil) ||
					!supported && !errors.Is(err, gpu.ErrNotSupported) {
					t.Fatalf("at first: %+v, %v", use, err)
				}
				if !supported {
					return
				}
				c := open(t, n, gpusim.ContextSpec{PID: 7, Device: string(work.Compute[0].UUID)})
				if err := c.Launch(t.Context(), 10*time.Millisecond, 500); err != nil {
					t.Fatal(err)
				}
				if use, err := d.InstanceUse(t.Context(), ids[0], both); len(use) != 0 || err != nil {
					t.Errorf("too soon: %+v, %v", use, err)
				}
				time.Sleep(10 * time.Second)
				use, err := d.InstanceUse(t.Context(), ids[0], both)
				if err != nil || len(use) != 2 || math.Abs(*use[0].Busy-50) > 1 || *use[1].Busy != 0 || *use[1].SM != 0 ||
					use[0].Length != 10*time.Second {
					t.Fatalf("after 5 s of work in 10 s: %+v, %v", use, err)
				}
				// Another instance with the same number is another one.
				c.Close()
				time.Sleep(time.Second)
				if err := d.DestroyInstance(t.Context(), ids[0], work.ID); err != nil {
					t.Fatal(err)
				}
				if use, err := d.InstanceUse(t.Context(), ids[0], both); err != nil || len(use) != 1 || use[0].GI != idle.ID {
					t.Errorf("destroyed: %+v, %v", use, err)
				}
				again := create(t, d, ids[0], p.ID, p.Placements[0].Start, p.Placements[0].Size)
				time.Sleep(time.Second)
				if use, err := d.InstanceUse(t.Context(), ids[0], both); err != nil || len(use) != 1 || again.ID != work.ID {
					t.Errorf("created again: %+v, %v", use, err)
				}
			})
		})
	}
}

// The calls for the counters answer as the header says: samples too near, of no instance, without the capability.
func TestCallsForCounters(t *testing.T) {
	const alloc, get, metrics, free = "nvmlGpmSampleAlloc", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleFree"
	synctest.Test(t, func(t *testing.T) {
		n := node(t, func(c *gpusim.Config) { withMIG(c); c.Use = gpusim.UseKeeps }, "H100-SXM5-80GB")
		d, ids := port(t, n)
		in := create(t, d, ids[0], 19, 0, 1)
		l, user := library(t, n, true), library(t, n, false)
		h := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
		from, to := l.one(alloc), l.one(alloc)
		ret := func(what string, want gpusim.Ret, name string, args ...uint64) {
			t.Helper()
			if got := l.ret(name, args...); got != want {
				t.Errorf("%s: %d, want %d", what, got, want)
			}
		}
		ret("a sample of no instance", gpusim.NotFound, get, h, 99, from)
		ret("a sample without a buffer", gpusim.InvalidArgument, get, h, uint64(in.ID), 4711)
		ret("metrics of empty buffers", gpusim.InvalidArgument, metrics, from, to, 1)
		ret("a sample", gpusim.Success, get, h, uint64(in.ID), from)
		ret("another", gpusim.Success, get, h, uint64(in.ID), to)
		ret("samples that are too near", gpusim.UnknownError, metrics, from, to, 1)
		if got := user.ret(get, user.one("nvmlDeviceGetHandleByIndex_v2", 0), uint64(in.ID), user.one(alloc)); got != gpusim.NoPermission {
			t.Errorf("without the capability: %d", got)
		}
		time.Sleep(time.Second)
		ret("another, later", gpusim.Success, get, h, uint64(in.ID), to)
		ret("metrics", gpusim.Success, metrics, from, to, 1, 2, 10)
		ret("in the other order", gpusim.InvalidArgument, metrics, to, from, 1)
		if err := d.DestroyInstance(t.Context(), ids[0], in.ID); !errors.Is(err, gpu.ErrInUse) {
			t.Errorf("an instance that a sample keeps: %v", err)
		}
		ret("free", gpusim.Success, free, from)
		ret("free again", gpusim.InvalidArgument, free, from)
		l.c.Close() // The end of a process frees its buffers.
		if err := d.DestroyInstance(t.Context(), ids[0], in.ID); err != nil {
			t.Errorf("an instance that no sample keeps any more: %v", err)
		}
	})
}
