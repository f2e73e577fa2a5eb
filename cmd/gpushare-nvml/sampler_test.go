//go:build cgo

package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
)

// TestSimSampler reads the samples of drivers that differ: their period, their clock, and whether they have the series.
func TestSimSampler(t *testing.T) {
	uptime := func() uint64 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
			t.Fatal(err)
		}
		return uint64(now.Nano() / 1000)
	}
	epoch := func() uint64 { return uint64(time.Now().UnixMicro()) }
	for _, c := range []struct {
		name, sampler string
		now           func() uint64
		period        uint64 // µs
		want          error
	}{
		{"default", "{}", epoch, 138888, nil},
		{"since boot", "{clock: boot, period: 100ms, naming: instant}", uptime, 100000, nil},
		{"missing", "{series: missing}", epoch, 138888, gpu.ErrMissing},
		{"unsupported", "{series: unsupported}", epoch, 138888, gpu.ErrNotSupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := serve(t, plain+"sampler: "+c.sampler+"\n", worker.Deadlines{})
			ctx := testContext(t)
			n.readGPUs(ctx)
			id := n.gpus[0]
			process := n.cudaContext(string(id))
			process.send("QUEUE 100")
			start := c.now()
			process.send("LAUNCH 10000 60")
			process.send("SYNC")
			end := c.now()
			s, err := n.UtilizationSeries(ctx, id, 0)
			if !errors.Is(err, c.want) {
				t.Fatalf("%+v, %v; want %v", s, err, c.want)
			}
			rows, newest, err := n.Utilization(ctx, id, 0)
			if err != nil || len(rows) != 1 || newest < start || newest > end+c.period {
				t.Errorf("by process: %+v, %d, %v; want one row between %d and %d", rows, newest, err, start, end)
			}
			if c.want != nil {
				return
			}
			if len(s.Samples) < 3 || s.Samples[0].Time < start || s.Newest > end+c.period {
				t.Fatalf("%+v; want samples between %d and %d", s, start, end)
			}
			for i, x := range s.Samples[1:] {
				if gap := x.Time - s.Samples[i].Time; gap < c.period || gap > c.period+1 {
					t.Errorf("period of %d µs, want %d", gap, c.period)
				}
			}
		})
	}
}

// TestSimSensorHangs lets the second reading of a sensor hang: the GPU is unresponsive, the other one is read.
func TestSimSensorHangs(t *testing.T) {
	for call, read := range map[string]func(*simNode, context.Context, gpu.UUID) error{
		"DeviceGetSamples": func(n *simNode, ctx context.Context, id gpu.UUID) error {
			_, err := n.UtilizationSeries(ctx, id, 0)
			return err
		},
		"DeviceGetProcessesUtilizationInfo": func(n *simNode, ctx context.Context, id gpu.UUID) error {
			_, _, err := n.Utilization(ctx, id, 0)
			return err
		},
	} {
		t.Run(call, func(t *testing.T) {
			n := serve(t, hopper, worker.Deadlines{Read: 500 * time.Millisecond})
			ctx := testContext(t)
			n.readGPUs(ctx)
			n.ctl("fault", "add", call, "hang", "--gpu", string(n.gpus[0]), "--nth", "2")
			for i, want := range []error{nil, gpu.ErrTimeout, gpu.ErrTimeout} {
				if err := read(n, ctx, n.gpus[0]); !errors.Is(err, want) {
					t.Errorf("reading %d: %v; want %v", i+1, err, want)
				}
			}
			if err := read(n, ctx, n.gpus[1]); err != nil {
				t.Errorf("the other GPU: %v", err)
			}
			if st := n.Status(); !slices.Equal(st.Unresponsive, n.gpus[:1]) {
				t.Errorf("unresponsive: %v", st.Unresponsive)
			}
			n.ctl("fault", "clear")
			if err := n.Retry(ctx, n.gpus[0]); err != nil {
				t.Errorf("retry: %v", err)
			}
			if err := read(n, ctx, n.gpus[0]); err != nil {
				t.Errorf("after the retry: %v", err)
			}
		})
	}
}
