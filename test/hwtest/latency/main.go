//go:build cgo

// Command latency measures the duration of driver calls: it calls the library directly, without the daemon and its
// worker, and prints a Markdown table. It only reads.
package main

import (
	"context"
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
	window := flag.Duration("window", 10*time.Second, "duration of the collection of utilization samples")
	library := flag.String("library", "", "the library's `path`")
	hostRoot := flag.String("host-root", "/", "read /proc and /sys under this `directory`")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+*window)
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
		{"Node", func() error { _, err := d.Node(ctx); return err }},
	} {
		if err := measure(c.name, *count, c.call); err != nil {
			return err
		}
	}
	return samples(ctx, d, target, *window)
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

// samples measures the period of the driver's utilization samples: the distances between their times.
func samples(ctx context.Context, d *nvml.Driver, id gpu.UUID, window time.Duration) error {
	began := time.Now()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	seen := map[uint64]bool{}
	kept := 0
	for time.Since(began) < window {
		list, _, err := d.Utilization(ctx, id, 0)
		if err != nil {
			fmt.Printf("\nutilization samples: %v\n", err)
			return nil
		}
		kept = max(kept, len(list))
		for _, s := range list {
			seen[s.Time] = true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	times := make([]uint64, 0, len(seen))
	for t := range seen {
		times = append(times, t)
	}
	slices.Sort(times)
	if len(times) < 3 {
		fmt.Printf("\nutilization samples: %d in %s: too few to measure their period\n", len(times), window)
		return nil
	}
	gaps := make([]time.Duration, 0, len(times)-1)
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, time.Duration(times[i]-times[i-1])*time.Microsecond)
	}
	slices.Sort(gaps)
	fmt.Printf("\nutilization samples: %d distinct times over %s, %s apart at the median (shortest %s, longest %s); at most %d in one answer\n",
		len(times), time.Duration(times[len(times)-1]-times[0])*time.Microsecond, round(gaps[len(gaps)/2]), round(gaps[0]), round(gaps[len(gaps)-1]), kept)
	return nil
}
