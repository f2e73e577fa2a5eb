//go:build cgo

// Command latency measures the duration of driver calls: it calls the library directly, without the daemon and its
// worker, and prints a Markdown table. It only reads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/nvml"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "latency:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	id := flag.String("gpu", "", "the GPU's `UUID`; the first when empty")
	count := flag.Int("n", 200, "calls of each kind")
	library := flag.String("library", "", "the library's `path`")
	hostRoot := flag.String("host-root", "/", "read /proc and /sys under this `directory`")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d, err := nvml.Open(nvml.WithLibraryPath(*library), nvml.WithHostRoot(*hostRoot))
	if err != nil {
		return err
	}
	defer d.Close()
	info, err := d.Node(ctx)
	if err != nil {
		return err
	}
	target := gpu.UUID(*id)
	if target == "" {
		if len(info.GPUs) == 0 {
			return fmt.Errorf("the driver finds no GPU")
		}
		target = info.GPUs[0].UUID
	}
	fmt.Printf("| call | calls | median | p99 | longest |\n|---|---|---|---|---|\n")
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"Memory", func() error { _, err := d.Memory(ctx, target); return err }},
		{"Processes", func() error { _, err := d.Processes(ctx, target); return err }},
		{"Snapshot", func() error { _, err := d.Snapshot(ctx, target); return err }},
		{"Utilization (samples of processes)", func() error { _, _, err := d.Utilization(ctx, target, 0); return err }},
		{"UtilizationSeries (samples of the GPU)", func() error {
			_, err := d.UtilizationSeries(ctx, target, 0)
			if errors.Is(err, gpu.ErrMissing) || errors.Is(err, gpu.ErrNotSupported) {
				return nil
			}
			return err
		}},
		{"Node", func() error { _, err := d.Node(ctx); return err }},
	} {
		if err := measure(c.name, *count, c.call); err != nil {
			return err
		}
	}
	return printUse(ctx, d, target)
}

// printUse prints whether the GPU counts how its instances are used, and what it counted of those that it has. It reads twice, a second
// apart.
func printUse(ctx context.Context, d *nvml.Driver, id gpu.UUID) error {
	s, err := d.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	var instances []uint32
	for i := range s.Instances {
		instances = append(instances, s.Instances[i].ID)
	}
	_, err = d.InstanceUse(ctx, id, instances)
	if gpu.IsAny(err, gpu.ErrMissing, gpu.ErrNotSupported, gpu.ErrDenied) {
		fmt.Printf("\nThe use of MIG instances (GPM) is not reported: %v.\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Printf("\nThe GPU counts the use of MIG instances (GPM); it has %d.\n", len(instances))
	if len(instances) == 0 {
		return nil
	}
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	uses, err := d.InstanceUse(ctx, id, instances)
	if err != nil {
		return err
	}
	percent := func(v *float64) string {
		if v == nil {
			return "not reported"
		}
		return fmt.Sprintf("%.1f %%", *v)
	}
	for _, u := range uses {
		fmt.Printf(
			"- instance %d, in %s: busy %s, multiprocessors %s, memory bandwidth %s\n",
			u.GI,
			u.Length.Round(time.Millisecond),
			percent(u.Busy),
			percent(u.SM),
			percent(u.Memory),
		)
	}
	return nil
}

// measure prints the durations of many calls.
func measure(name string, n int, call func() error) error {
	durations := make([]time.Duration, 0, n)
	for range n {
		began := time.Now()
		if err := call(); err != nil {
			return err
		}
		durations = append(durations, time.Since(began))
	}
	slices.Sort(durations)
	fmt.Printf("| %s | %d | %s | %s | %s |\n", name, n, round(durations[n/2]), round(durations[n*99/100]), round(durations[n-1]))
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
