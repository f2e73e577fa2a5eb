//go:build cgo

package main

import (
	"errors"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
)

// awaitUse reads until there is a result, and returns it.
func (n *simNode) awaitUse(id gpu.UUID, instances ...uint32) []gpu.InstanceUse {
	n.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		use, err := n.InstanceUse(n.t.Context(), id, instances)
		if err != nil {
			n.t.Fatal(err)
		}
		if len(use) > 0 {
			return use
		}
	}
	n.t.Fatal("no result")
	return nil
}

// The worker reads how instances were used, also where a sample would keep an instance from being destroyed: it frees them before. What
// ran is seen, an idle instance has 0, and another instance with the same number begins again.
func TestSimInstanceUse(t *testing.T) {
	n := serve(t, "driver: \"580\"\ninstance_use: keeps\ngpus:\n  - {model: H100-SXM5-80GB, mig: true}\n", worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	id := n.gpus[0]
	instance := func(start uint32) gpu.Instance {
		t.Helper()
		in, err := n.CreateInstance(ctx, id, gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: start, Size: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	work, idle := instance(0), instance(1)
	if use, err := n.InstanceUse(ctx, id, []uint32{work.ID, idle.ID, 99}); err != nil || len(use) != 0 {
		t.Errorf("at first: %+v, %v", use, err)
	}
	c := n.cudaContext(string(work.Compute[0].UUID))
	c.send("QUEUE 100")
	c.send("LAUNCH 20000 10")
	c.send("SYNC")
	use := n.awaitUse(id, work.ID, idle.ID)
	if len(use) != 2 || use[0].GI != work.ID || use[0].Busy == nil || *use[0].Busy <= 0 || *use[0].Busy > 100 || use[0].SM == nil ||
		use[0].Memory == nil || use[0].Length < gpu.LeastUse || use[1].Busy == nil || *use[1].Busy != 0 {
		t.Fatalf("%+v", use)
	}
	c.conn.Close()
	for deadline := time.Now().Add(10 * time.Second); ; { // until the process is off the instance
		err := n.DestroyInstance(ctx, id, work.ID)
		if err == nil {
			break
		}
		if !errors.Is(err, gpu.ErrInUse) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if again := instance(0); again.ID != work.ID {
		t.Fatalf("instance %d, want %d again", again.ID, work.ID)
	}
	if use, err := n.InstanceUse(ctx, id, []uint32{work.ID}); err != nil || len(use) != 0 {
		t.Errorf("compared with the instance before: %+v, %v", use, err)
	}
	calls := n.calls()
	if got := calls["GpmSampleAlloc"] - calls["GpmSampleFree"]; got < 1 || got > 2 {
		t.Errorf("%d buffers are in use for 2 instances", got)
	}
	// Those that are not asked for have none.
	if _, err := n.InstanceUse(ctx, id, nil); err != nil {
		t.Fatal(err)
	}
	if calls = n.calls(); calls["GpmSampleAlloc"] != calls["GpmSampleFree"] {
		t.Errorf("%d buffers were made, and %d freed", calls["GpmSampleAlloc"], calls["GpmSampleFree"])
	}
	before := n.calls()["GpmQueryDeviceSupport"]
	_ = n.awaitUse(id, idle.ID)
	if now := n.calls()["GpmQueryDeviceSupport"]; now != before || now != 1 {
		t.Errorf("whether the board has counters was asked %d times", now)
	}
}

// Boards, libraries and drivers without the counters say so.
func TestSimInstanceUseRefused(t *testing.T) {
	for name, c := range map[string]struct {
		node string
		want error
	}{
		"a board without counters":  {"driver: \"580\"\ngpus:\n  - {model: A100-SXM4-40GB, mig: true, layout: [1g.5gb@0]}\n", gpu.ErrNotSupported},
		"a library without calls":   {"driver: \"470\"\ngpus:\n  - {model: A100-SXM4-40GB, mig: true, layout: [1g.5gb@0]}\n", gpu.ErrMissing},
		"a driver without counters": {"driver: \"580\"\ninstance_use: unsupported\ngpus:\n  - {model: H100-SXM5-80GB, mig: true}\n", gpu.ErrNotSupported},
		"a driver that refuses": {
			"driver: \"580\"\ninstance_use: denied\ngpus:\n  - {model: H100-SXM5-80GB, mig: true, layout: [1g.10gb@0]}\n", gpu.ErrDenied,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := serve(t, c.node, worker.Deadlines{})
			ctx := testContext(t)
			n.readGPUs(ctx)
			s, err := n.Snapshot(ctx, n.gpus[0])
			if err != nil {
				t.Fatal(err)
			}
			gi := uint32(7)
			if len(s.Instances) > 0 {
				gi = s.Instances[0].ID
			}
			if use, err := n.InstanceUse(ctx, n.gpus[0], []uint32{gi}); !errors.Is(err, c.want) || len(use) != 0 {
				t.Errorf("%+v, %v; want %v", use, err, c.want)
			}
		})
	}
}
