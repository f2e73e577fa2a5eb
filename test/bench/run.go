package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/harness"
)

// toExec measures gpushare run on nodes without systemd, and what is in it: on MIG instances, which it reads to be vacant before the
// command has one, and on shared GPUs, where it reads nothing. The directories of a node are in memory where that is possible, as the
// run directory of a host is: there a record of leases is not written to a disk.
func (b *bench) toExec(ctx context.Context) ([]Figure, error) {
	var all []Figure
	for _, on := range []struct{ place, file, spec string }{
		{"a MIG instance", "testdata/nodes/dgx-a100-mig.yaml", bigSpec()},
		{"a shared GPU", "testdata/nodes/dgx-a100.yaml", sharedSpec()},
	} {
		figures, err := b.toExecOn(ctx, on.place, on.file, on.spec)
		if err != nil {
			return nil, fmt.Errorf("on %s: %w", on.place, err)
		}
		all = append(all, figures...)
	}
	return all, nil
}

// sharedSpec shares one GPU among 8 tenants.
func sharedSpec() string {
	var b strings.Builder
	b.WriteString("version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: 7}, mode: timeslice}\ntenants:\n")
	for i := range 8 {
		fmt.Fprintf(&b, "  - {name: team%02d, grants: [{name: run, timeslice: {share: 10%%, gpu_memory: 1GiB}}]}\n", i)
	}
	return b.String()
}

func (b *bench) toExecOn(ctx context.Context, place, file, spec string) ([]Figure, error) {
	n := &harness.Node{Bin: b.bin, File: file}
	if dir, ok := inMemory(); ok {
		defer os.RemoveAll(dir)
		n.Dir = dir
	}
	defer n.Close()
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	if r := n.CLIIn(ctx, spec, "apply", "-f", "-"); r.Code != 0 {
		return nil, fmt.Errorf("cannot apply the spec: %s", r.Err)
	}
	return runToExec(ctx, n, place)
}

// inMemory creates a directory on a tmpfs that tenants can read; ok is false without one.
func inMemory() (dir string, ok bool) {
	var fs unix.Statfs_t
	if unix.Statfs("/dev/shm", &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return "", false
	}
	dir, err := os.MkdirTemp("/dev/shm", "gpushare-")
	if err != nil {
		return "", false
	}
	if os.Chmod(dir, 0o755) != nil {
		os.RemoveAll(dir)
		return "", false
	}
	return dir, true
}

// runToExec measures the time from the start of gpushare run until its command runs: alone, one after the other, and in 8 concurrent
// loops. The command is date, which prints the time: its own start is part of the figure, and is a figure of its own, like the start
// of gpushare without a request.
func runToExec(ctx context.Context, n *harness.Node, place string) ([]Figure, error) {
	lease := func(tenant int) func() (string, error) {
		return func() (string, error) {
			r := n.CLI(ctx, "run", "-q", "-t", fmt.Sprintf("team%02d", tenant), "--wait=30s", "--", "date", "+%s%N")
			if r.Code != 0 {
				return "", fmt.Errorf("gpushare run exits with %d: %s%s", r.Code, r.Out, r.Err)
			}
			return r.Out, nil
		}
	}
	date, err := concurrently(1, 200, func(int) func() (string, error) {
		return func() (string, error) {
			b, err := exec.CommandContext(ctx, "date", "+%s%N").Output()
			return string(b), err
		}
	})
	if err != nil {
		return nil, err
	}
	var starts []float64
	for range 100 {
		began := time.Now()
		if r := n.CLI(ctx, "run"); r.Code != 2 { // It has no command: nothing is requested.
			return nil, fmt.Errorf("gpushare run without a command exits with %d: %s", r.Code, r.Err)
		}
		starts = append(starts, float64(time.Since(began).Microseconds())/1000)
	}
	alone, err := concurrently(1, 200, lease)
	if err != nil {
		return nil, err
	}
	eight, err := concurrently(8, 50, lease)
	if err != nil {
		return nil, err
	}
	name := "gpushare run to exec on " + place + ", without systemd, "
	return []Figure{
		figure("date, start to its output, median", []float64{median(date)}, "ms", "lower", nil),
		figure("gpushare run without a request, whole process, median", []float64{median(starts)}, "ms", "lower", nil),
		lower(name+"alone: median", median(alone), "ms", 5),
		figure(name+"alone: p99", []float64{percentile99(alone)}, "ms", "lower", nil),
		lower(name+"8 at once: median", median(eight), "ms", 30),
		lower(name+"8 at once: p99", percentile99(eight), "ms", 20),
	}, nil
}

// concurrently repeats programs that print the time, in nanoseconds since the epoch, in several loops, and returns how many milliseconds
// after its start each printed it, in order.
func concurrently(loops, rounds int, program func(loop int) func() (string, error)) ([]float64, error) {
	durations, errs := make([][]float64, loops), make([]error, loops)
	var all sync.WaitGroup
	for i := range loops {
		all.Go(func() {
			start := program(i)
			for range rounds {
				began := time.Now()
				out, err := start()
				if err != nil {
					errs[i] = err
					return
				}
				ran, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
				if err != nil {
					errs[i] = fmt.Errorf("the program printed %q, and no time", out)
					return
				}
				durations[i] = append(durations[i], float64(time.Unix(0, ran).Sub(began).Microseconds())/1000)
			}
		})
	}
	all.Wait()
	v := slices.Concat(durations...)
	slices.Sort(v)
	return v, errors.Join(errs...)
}

// percentile99 is of values in order.
func percentile99(v []float64) float64 { return v[len(v)*99/100] }
