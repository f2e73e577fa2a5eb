//go:build cgo

package main

import (
	"errors"
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
