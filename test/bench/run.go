package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/test/harness"
)

// toExec measures gpushare run on nodes without systemd, and what is in it: on MIG instances, which it reads to be vacant before the
// command has one, and on shared GPUs, where it reads nothing. The directories of a node are in memory where that is possible, as the
// run directory of a host is: there a record of leases is not written to a disk.
func (b *bench) toExec(ctx context.Context) ([]Figure, error) {
	var all []Figure
	empty, remove, err := emptyProgram(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	if !booted() {
		fmt.Fprintln(b.errs, "bench: run: gpushare run is not compared with systemd-run: not measured: no systemd")
	}
	for _, on := range []toExecPlace{
		{"a MIG instance", "testdata/nodes/dgx-a100-mig.yaml", bigSpec(), 56, 10, 40}, // A process list of 4 ms is in it.
		{"a shared GPU", "testdata/nodes/dgx-a100.yaml", sharedSpec(), 8, 5, 20},
	} {
		figures, err := b.toExecOn(ctx, on, empty)
		if err != nil {
			return nil, fmt.Errorf("on %s: %w", on.name, err)
		}
		all = append(all, figures...)
	}
	return all, nil
}

// toExecPlace is where gpushare run is measured, with the targets in ms.
type toExecPlace struct {
	name, file, spec string
	tenants          int     // each has one place at least
	alone, eight     float64 // median alone, and p99 of 8 at once
}

// emptyProgram builds a Go program that does nothing: what this machine needs at least.
func emptyProgram(ctx context.Context) (file string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "gpushare-bench-")
	if err != nil {
		return "", nil, fmt.Errorf("cannot create a directory: %w", err)
	}
	remove = func() { os.RemoveAll(dir) }
	source := filepath.Join(dir, "main.go")
	file = filepath.Join(dir, "empty")
	if err = os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err == nil {
		build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", file, source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = build.CombinedOutput(); err != nil {
			err = fmt.Errorf("cannot build an empty program: %w: %s", err, out)
		}
	}
	if err != nil {
		remove()
		return "", nil, err
	}
	return file, remove, nil
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

func (b *bench) toExecOn(ctx context.Context, on toExecPlace, empty string) ([]Figure, error) {
	n := &harness.Node{Bin: b.bin, File: on.file}
	if dir, ok := inMemory(); ok {
		defer os.RemoveAll(dir)
		n.Dir = dir
	}
	defer n.Close()
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	if r := n.CLIIn(ctx, on.spec, "apply", "-f", "-"); r.Code != 0 {
		return nil, fmt.Errorf("cannot apply the spec: %s", r.Err)
	}
	return runToExec(ctx, n, on, empty)
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

// concurrent is how many start at once.
const concurrent = 8

// timing is a program that is measured between others, under the same load.
type timing struct {
	name    string
	measure func() (ms float64, err error)
	all     []float64 // alone, in order
	eight   []float64 // of 8 at once, in order

	yardstick bool // gpushare run is compared with it
}

// runToExec measures the time from the start of gpushare run until its command runs: alone, interleaved with an empty program and, where
// systemd is the init, with systemd-run; and in 8 concurrent loops, as these. The command is date, which prints the time: its own start is
// part of the figure, and is a figure of its own, like the start of the command line without a request. The processor time of a run, with
// what the daemon and its programs use until the next one, depends less on what else the machine does.
func runToExec(ctx context.Context, n *harness.Node, on toExecPlace, empty string) ([]Figure, error) {
	lease := func(loop int) func() (float64, error) {
		tenant := loop - concurrent
		return func() (float64, error) {
			// Where a tenant has one place, the next one is another's: else it waits for the end of the lease before it.
			tenant = (tenant + concurrent) % on.tenants
			return untilOutput(func() (string, error) {
				r := n.CLI(ctx, "run", "-q", "-t", fmt.Sprintf("team%02d", tenant), "--wait=30s", "--", "date", "+%s%N")
				if r.Code != 0 {
					return "", fmt.Errorf("gpushare run exits with %d: %s%s", r.Code, r.Out, r.Err)
				}
				return r.Out, nil
			})
		}
	}
	timed := func(argv ...string) func() (float64, error) {
		return func() (float64, error) {
			return untilOutput(func() (string, error) {
				b, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
				return string(b), err
			})
		}
	}
	programs := []timing{
		{name: "gpushare run", measure: lease(0)},
		{name: "an empty Go program, whole process", yardstick: true, measure: func() (float64, error) {
			return untilEnd(func() error { return exec.CommandContext(ctx, empty).Run() })
		}},
		{name: "date, start to its output", measure: timed("date", "+%s%N")},
		{name: "the command line without a request, whole process", measure: func() (float64, error) {
			return untilEnd(func() error {
				if r := n.CLI(ctx, "run"); r.Code != 2 { // It has no command: nothing is requested.
					return fmt.Errorf("gpushare run without a command exits with %d: %s", r.Code, r.Err)
				}
				return nil
			})
		}},
	}
	if booted() {
		programs = append(programs, timing{
			name:      "systemd-run --scope of date, start to its output",
			yardstick: true,
			measure:   timed("systemd-run", "--quiet", "--scope", "--", "date", "+%s%N"),
		})
	}
	if err := interleaved(200, programs); err != nil {
		return nil, err
	}
	seldom, err := afterPauses(ctx, programs[0].measure)
	if err != nil {
		return nil, err
	}
	burst, err := atOnce(ctx, n, programs, lease)
	if err != nil {
		return nil, err
	}
	figures := append(on.figures(programs, burst.processor), burst.figures(on.title())...)
	return append(figures, seldom.figures(on.title())...), nil
}

// burst is what eight loops of gpushare run needed, for each run.
type burst struct {
	processor float64 // ms of all programs
	counted   map[string]float64
}

// atOnce measures gpushare run, the first program, and then the yardsticks in eight loops.
func atOnce(ctx context.Context, n *harness.Node, programs []timing, lease func(loop int) func() (float64, error)) (b burst, err error) {
	const rounds = 50
	used, err := processorTime(n)
	if err != nil {
		return b, err
	}
	before, err := n.Client().Counters(ctx)
	if err != nil {
		return b, err
	}
	if programs[0].eight, err = concurrently(concurrent, rounds, lease); err != nil {
		return b, err
	}
	after, err := processorTime(n)
	if err != nil {
		return b, err
	}
	now, err := n.Client().Counters(ctx)
	if err != nil {
		return b, err
	}
	b = burst{float64((after - used).Microseconds()) / 1000 / concurrent / rounds, map[string]float64{}}
	for name := range now {
		b.counted[name] = float64(now[name]-before[name]) / concurrent / rounds
	}
	for i := range programs[1:] {
		t := &programs[1+i]
		if !t.yardstick {
			continue
		}
		if t.eight, err = concurrently(concurrent, rounds, func(int) func() (float64, error) { return t.measure }); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (b *burst) figures(title string) (out []Figure) {
	for _, c := range []struct{ name, what string }{
		{"worker.messages", "requests to the driver"}, {"cdi.writes", "CDI files written"}, {"converge.runs", "observations of the node"},
	} {
		out = append(out, figure(title+"8 at once: "+c.what+" for each", []float64{b.counted[c.name]}, "", "lower", nil))
	}
	return out
}

// seldomRuns are runs after a pause, and what the kernel needs for the move that is in each of them.
type seldomRuns struct{ run, move []float64 }

// afterPauses measures runs as users start them: no other lease has started in the last tenth of a second.
func afterPauses(ctx context.Context, run func() (float64, error)) (s seldomRuns, err error) {
	const times = 50
	for range times {
		if !loop.Pause(ctx, movePause) {
			return s, ctx.Err()
		}
		ms, err := run()
		if err != nil {
			return s, err
		}
		s.run = append(s.run, ms)
	}
	s.move, err = moves(ctx, times)
	return s, err
}

func (s *seldomRuns) figures(title string) []Figure {
	pause := fmt.Sprintf("after a pause of %s: median", movePause)
	out := []Figure{figure(title+"alone, "+pause, []float64{median(s.run)}, "ms", "lower", nil)}
	if len(s.move) > 0 {
		out = append(out, figure("the kernel moves a process into another cgroup, "+pause, []float64{median(s.move)}, "ms", "lower", nil))
	}
	return out
}

// title begins the names of the figures of a place.
func (on *toExecPlace) title() string {
	return "gpushare run to exec on " + on.name + ", without systemd, "
}

// booted reports whether systemd runs here: sd_booted(3).
func booted() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// processorTime is what this process, the programs that it awaited, the daemon and its programs have used.
func processorTime(n *harness.Node) (sum time.Duration, err error) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			return 0, fmt.Errorf("cannot read the processor time: %w", err)
		}
		sum += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	all, err := programsOf(n)
	if err != nil {
		return 0, err
	}
	for _, p := range all {
		t, err := cpuTime(p.pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// figures are those of one place. The first program is gpushare run.
func (on *toExecPlace) figures(programs []timing, processor float64) []Figure {
	name := on.title()
	run := &programs[0]
	figures := []Figure{
		figure(name+"alone: minimum", []float64{slices.Min(run.all)}, "ms", "lower", nil),
		lower(name+"alone: median", median(run.all), "ms", on.alone),
		figure(name+"alone: p99", []float64{percentile99(run.all)}, "ms", "lower", nil),
		figure(name+"8 at once: median", []float64{median(run.eight)}, "ms", "lower", nil),
		lower(name+"8 at once: p99", percentile99(run.eight), "ms", on.eight),
		figure(
			name+"8 at once: processor time of each, with its command, its end and the measurement",
			[]float64{processor},
			"ms",
			"lower",
			nil,
		),
	}
	for _, t := range programs[1:] {
		figures = append(figures, figure(t.name+": median", []float64{median(t.all)}, "ms", "lower", nil))
		if !t.yardstick {
			continue
		}
		for _, f := range []struct {
			what       string
			one, other float64
		}{
			{"alone, median", median(run.all), median(t.all)},
			{"alone, p99", percentile99(run.all), percentile99(t.all)},
			{"8 at once, median", median(run.eight), median(t.eight)},
			{"8 at once, p99", percentile99(run.eight), percentile99(t.eight)},
		} {
			figures = append(figures, figure(name+f.what+": times that of "+t.name, []float64{f.one / f.other}, "", "lower", nil))
		}
		figures = append(
			figures, figure(t.name+", 8 at once: median", []float64{median(t.eight)}, "ms", "lower", nil),
			figure(t.name+", 8 at once: p99", []float64{percentile99(t.eight)}, "ms", "lower", nil),
		)
	}
	return figures
}

// interleaved measures each program as often, one after the other.
func interleaved(rounds int, programs []timing) error {
	for range rounds {
		for i := range programs {
			ms, err := programs[i].measure()
			if err != nil {
				return fmt.Errorf("%s: %w", programs[i].name, err)
			}
			programs[i].all = append(programs[i].all, ms)
		}
	}
	for i := range programs {
		slices.Sort(programs[i].all)
	}
	return nil
}

// untilOutput returns how many milliseconds after its start a program wrote the time, in nanoseconds since the epoch.
func untilOutput(run func() (string, error)) (float64, error) {
	began := time.Now()
	out, err := run()
	if err != nil {
		return 0, err
	}
	ran, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the program wrote %q, and no time", out)
	}
	return float64(time.Unix(0, ran).Sub(began).Microseconds()) / 1000, nil
}

// untilEnd returns how many milliseconds a program ran.
func untilEnd(run func() error) (float64, error) {
	began := time.Now()
	err := run()
	return float64(time.Since(began).Microseconds()) / 1000, err
}

// concurrently repeats a measurement in several loops, and returns the results in order.
func concurrently(loops, rounds int, program func(loop int) func() (float64, error)) ([]float64, error) {
	durations, errs := make([][]float64, loops), make([]error, loops)
	var all sync.WaitGroup
	for i := range loops {
		all.Go(func() {
			measure := program(i)
			for range rounds {
				ms, err := measure()
				if err != nil {
					errs[i] = err
					return
				}
				durations[i] = append(durations[i], ms)
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
