package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what a program needed.
type usage struct {
	cpu   time.Duration
	wakes uint64 // how often one of its threads had waited, and ran again
}

// used is what the programs needed in some time, by name.
type used struct {
	elapsed  time.Duration
	programs map[string]usage
	// yardstick is the CPU time of one reading of a small file meanwhile. Programs that share a core and its caches with others need more
	// CPU time for the same: compare it with the same figure of another run.
	yardstick time.Duration
}

// useOf measures what some programs need in a time.
func useOf(ctx context.Context, programs []program, d time.Duration) (used, error) {
	read := func() (map[string]usage, error) {
		out := map[string]usage{}
		for _, p := range programs {
			u, err := usageOf(p.pid)
			if err != nil {
				return nil, err
			}
			sum := out[p.name]
			sum.cpu, sum.wakes = sum.cpu+u.cpu, sum.wakes+u.wakes
			out[p.name] = sum
		}
		return out, nil
	}
	began := time.Now()
	before, err := read()
	if err != nil {
		return used{}, err
	}
	yardstick, err := measureYardstick(ctx, d)
	if err != nil {
		return used{}, err
	}
	after, err := read()
	if err != nil {
		return used{}, err
	}
	u := used{elapsed: time.Since(began), programs: map[string]usage{}, yardstick: yardstick}
	for name, a := range after {
		u.programs[name] = usage{a.cpu - before[name].cpu, a.wakes - min(a.wakes, before[name].wakes)}
	}
	return u, nil
}

// percent is the CPU time of one program in percent of a core.
func (u *used) percent(name string) float64 {
	return 100 * u.programs[name].cpu.Seconds() / u.elapsed.Seconds()
}

// perSecond is how often one program woke up in a second.
func (u *used) perSecond(name string) float64 {
	return float64(u.programs[name].wakes) / u.elapsed.Seconds()
}

// all is the CPU time of all programs.
func (u *used) all() (percent float64) {
	for name := range u.programs {
		percent += u.percent(name)
	}
	return percent
}

// figures are the CPU time of all programs against a target, and then of each program its CPU time and its wake-ups, of which some have
// a target: a busy machine adds fewer to them than to the CPU time.
func (u *used) figures(name string, target float64, wakes map[string]float64) []Figure {
	out := []Figure{
		lower(fmt.Sprintf("%s: CPU of all programs over %s", name, u.elapsed.Round(time.Second)), u.all(), "% of a core", target),
	}
	for _, p := range slices.Sorted(maps.Keys(u.programs)) {
		var most *float64
		if v, ok := wakes[p]; ok {
			most = &v
		}
		out = append(out,
			figure(name+": of that, "+p, []float64{u.percent(p)}, "% of a core", "lower", nil),
			figure(name+": wake-ups of threads of "+p, []float64{u.perSecond(p)}, "/s", "lower", most),
		)
	}
	return append(
		out,
		figure(name+": one reading of a small file next to it", []float64{float64(u.yardstick.Nanoseconds())}, "ns of CPU", "lower", nil),
	)
}

// usageOf reads what a process needed so far. The CPU time is that of all its threads, ended ones too, in nanoseconds, by the process's
// clock: see clock_getcpuclockid(3). The wake-ups are those of threads that run.
func usageOf(pid int) (u usage, err error) {
	if u.cpu, err = cpuTime(pid); err != nil {
		return u, err
	}
	states, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return u, fmt.Errorf("cannot list the threads of process %d: %w", pid, err)
	}
	for _, name := range states {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // It has ended.
		}
		for line := range strings.Lines(string(b)) {
			if kind, v, ok := strings.Cut(line, "_ctxt_switches:"); ok && kind[0] != 'n' { // In the others it lost its core.
				n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
				if err != nil {
					return u, fmt.Errorf("cannot read %s: %w", name, err)
				}
				u.wakes += n
			}
		}
	}
	return u, nil
}

// cpuTime is the CPU time of all threads of a process, ended ones included.
func cpuTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel: what the scheduler counted
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|scheduled, &ts); err != nil {
		return 0, fmt.Errorf("cannot read the CPU time of process %d: %w", pid, os.NewSyscallError("clock_gettime", err))
	}
	return time.Duration(ts.Nano()), nil
}

// yardstickPause is the time between two readings of the yardstick: they take a ten-thousandth of a core.
const yardstickPause = 100 * time.Millisecond

// measureYardstick reads a file of the kernel now and then, until the time has passed, and returns the CPU time of one reading.
func measureYardstick(ctx context.Context, d time.Duration) (time.Duration, error) {
	runtime.LockOSThread() // Its CPU time is read.
	defer runtime.UnlockOSThread()
	f, err := os.Open("/proc/self/comm")
	if err != nil {
		return 0, fmt.Errorf("cannot measure the CPU time of a reading: %w", err)
	}
	defer f.Close()
	var ts unix.Timespec
	now := func() time.Duration {
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // It cannot fail: the thread has one.
		return time.Duration(ts.Nano())
	}
	var sum time.Duration
	buf, n := make([]byte, 64), 0
	for end := time.Now().Add(d); ; n++ {
		left := time.Until(end)
		if left <= 0 {
			return sum / time.Duration(max(n, 1)), nil
		}
		if err := pause(ctx, min(left, yardstickPause)); err != nil {
			return 0, err
		}
		began := now()
		_, _ = f.ReadAt(buf, 0) // It ends before the buffer.
		sum += now() - began
	}
}
