//go:build cgo

// Command watch reads one GPU again and again, straight through the library, and prints one line of JSON for each reading. It
// only reads.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/nvml"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/hwtest/readings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "watch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	id := flag.String("gpu", "", "the GPU's `UUID`")
	every := flag.Duration("every", 50*time.Millisecond, "time between two readings")
	window := flag.Duration("for", 10*time.Second, "end after this time")
	samples := flag.Bool("samples", false, "read utilisation samples, not memory")
	library := flag.String("library", "", "the library's `path`")
	hostRoot := flag.String("host-root", "/", "read /proc and /sys under this `directory`")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, *window)
	defer cancel()
	d, err := nvml.Open(nvml.WithLibraryPath(*library), nvml.WithHostRoot(*hostRoot))
	if err != nil {
		return err
	}
	defer d.Close()
	out := json.NewEncoder(os.Stdout)
	tick := time.NewTicker(*every)
	defer tick.Stop()
	var since, seriesSince uint64
	for {
		r := readings.Reading{Since1970: uint64(time.Now().UnixMicro()), Boot: uint64(procfs.BootTime().Microseconds())}
		if *samples {
			since, seriesSince, err = sample(ctx, d, gpu.UUID(*id), since, seriesSince, &r)
		} else {
			err = memory(ctx, d, gpu.UUID(*id), &r)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = out.Encode(r)
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func memory(ctx context.Context, d *nvml.Driver, id gpu.UUID, r *readings.Reading) error {
	s, err := d.Snapshot(ctx, id)
	r.Used, r.Utilization = s.Memory.Used, s.Utilization
	return err
}

// sample reads what is newer than the last reading. A series that the driver lacks is part of the result.
func sample(
	ctx context.Context, d *nvml.Driver, id gpu.UUID, since, seriesSince uint64, r *readings.Reading,
) (newest, seriesNewest uint64, err error) {
	r.Processes, newest, err = d.Utilization(ctx, id, since)
	if err != nil {
		return since, seriesSince, err
	}
	s, err := d.UtilizationSeries(ctx, id, seriesSince)
	switch {
	case errors.Is(err, gpu.ErrMissing) || errors.Is(err, gpu.ErrNotSupported):
		r.SeriesError = err.Error()
		return max(newest, since), seriesSince, nil
	case err != nil:
		return since, seriesSince, err
	}
	r.Series = s.Samples
	return max(newest, since), max(s.Newest, seriesSince), nil
}
