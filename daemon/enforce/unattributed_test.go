package enforce

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// managedDriver is a driver whose GPU has memory in no process.
type managedDriver struct {
	*fakeDriver
	managed func() uint64
}

func (d *managedDriver) add(m gpu.Memory) gpu.Memory {
	m.Reserved = 1
	m.Used += d.managed()
	m.Free = m.Total - m.Used
	return m
}

func (d *managedDriver) Memory(ctx context.Context, id gpu.UUID) (gpu.Memory, error) {
	m, err := d.fakeDriver.Memory(ctx, id)
	return d.add(m), err
}

func (d *managedDriver) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	s, err := d.fakeDriver.Snapshot(ctx, id)
	s.Memory = d.add(s.Memory)
	return s, err
}

// Memory in no process is shown and reported once. The only lease of the GPU is not blamed for it.
func TestMemoryInNoProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, "kill")
		w.port.assign(unusedPID, w.lease)
		w.driver.sample = func() ([]gpu.Process, error) { return []gpu.Process{on(unusedPID, limit/2)}, nil }
		w.Driver = &managedDriver{w.driver, func() uint64 {
			if time.Since(w.journal.start) < 5*time.Second {
				return 100 * mib
			}
			return 5 << 30
		}}
		w.begin(t)
		shown := func() uint64 {
			g := w.Samples.Overlay(&observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: testGPU}}}}})
			for i := range g.GPUs {
				if g.GPUs[i].Unattributed != nil {
					return *g.GPUs[i].Unattributed
				}
			}
			return 1
		}
		w.runUntil(4 * time.Second)
		if got := shown(); got != 0 {
			t.Errorf("what the driver uses itself is shown as %d bytes", got)
		}
		w.runUntil(40 * time.Second)
		got := shown()
		l, _ := w.Table.Get(w.lease)
		w.end()
		if got != 5<<30 {
			t.Errorf("shows %d bytes in no process, want 5 GiB", got)
		}
		if d := cmp.Diff([]string{"memory.unattributed"}, kinds(w.journal.read())); d != "" {
			t.Errorf("what was done (-want +got):\n%s", d)
		}
		if l.State != lease.Running || len(l.Notices) != w.lines {
			t.Errorf("the lease is %s, its user gets %q", l.State, l.Notices)
		}
	})
}

// kinds are the lines of a journal without their times.
func kinds(lines []string) (out []string) {
	for _, l := range lines {
		_, what, _ := strings.Cut(l, " ")
		out = append(out, what)
	}
	return out
}
