package escape

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

// countedDriver counts the readings of two GPUs, and lets no memory be read until both readings have begun.
type countedDriver struct {
	gpu.Driver
	both      sync.WaitGroup
	mu        sync.Mutex
	memories  int
	lists     int
	used      uint64
	processes []gpu.Process
}

func (d *countedDriver) Memory(context.Context, gpu.UUID) (gpu.Memory, error) {
	d.both.Done()
	d.both.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memories++
	return gpu.Memory{Used: d.used}, nil
}

func (d *countedDriver) Processes(context.Context, gpu.UUID) ([]gpu.Process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists++
	return d.processes, nil
}

// The memory of all idle GPUs is read at the same time, and their processes only if they may be others: where there was none, not
// before the memory has moved.
func TestIdleGPUsAreListedWhenTheirMemoryMoves(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	d := &countedDriver{used: 500}
	e := &Escapes{
		Reporter: report.NewReporter(nil, func() time.Time { return now }), Driver: d, Samples: &observe.Samples{},
	}
	want := &state.Desired{
		Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}},
		GPUs: map[gpu.UUID]*api.GPUSpec{"a": {Mode: api.ModeExclusive}, "b": {Mode: api.ModeExclusive}},
	}
	node := &observe.Node{At: now.Add(-time.Minute), GPUs: make([]observe.GPU, 2)}
	node.GPUs[0].Identity.UUID, node.GPUs[1].Identity.UUID = "a", "b"
	x := unattributedTracker{listed: map[gpu.UUID]listing{}}
	pid := []gpu.Process{{PID: 7}}
	for _, c := range []struct {
		name            string
		after           time.Duration
		used            uint64
		processes       []gpu.Process
		memories, lists int
	}{
		{"the first time", 0, 500, nil, 2, 2},
		{"a second later", time.Second, 500, nil, 0, 0},
		{"when it is time", time.Second, 500, nil, 2, 0},
		{"none for a long time", 20 * time.Second, 500, nil, 2, 0},
		{"the memory moved", idleInterval, 900, pid, 2, 2},
		{"it did not move", idleInterval, 900, pid, 2, 0},
		{"another may have taken as much", listingMaxAge, 900, pid, 2, 2},
	} {
		now = now.Add(c.after)
		d.used, d.processes, d.memories, d.lists = c.used, c.processes, 0, 0
		d.both = sync.WaitGroup{}
		d.both.Add(c.memories)
		x.refresh(t.Context(), e, want, node)
		if d.memories != c.memories || d.lists != c.lists {
			t.Errorf("%s: %d readings of memory and %d lists, want %d and %d", c.name, d.memories, d.lists, c.memories, c.lists)
		}
		if got := x.processes(&node.GPUs[1]); len(got) != len(c.processes) {
			t.Errorf("%s: %d processes, want %d", c.name, len(got), len(c.processes))
		}
	}
}
