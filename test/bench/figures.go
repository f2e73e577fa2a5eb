package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/test/harness"
)

// bigSpec has 8 × 7 instances and 64 tenants.
func bigSpec() string {
	var b strings.Builder
	b.WriteString("version: v1\nnode: {enforce: on}\ngpus:\n  - select: {all: true}\n    mode: mig\n    mig: {layout: [" +
		strings.TrimSuffix(strings.Repeat("1g.5gb, ", 7), ", ") + "]}\ntenants:\n")
	for i := range 64 {
		fmt.Fprintf(
			&b,
			"  - name: team%02d\n    cpu: {weight: 200}\n    memory: {max: 8GiB}\n    tasks: 512\n    grants: [{name: run, mig: 1g.5gb}]\n",
			i,
		)
	}
	return b.String()
}

// startToReady restarts the daemon on the full node.
func startToReady(ctx context.Context, n *harness.Node) ([]Figure, error) {
	var durations []float64
	for range 7 {
		n.StopDaemon()
		began := time.Now()
		if err := n.StartDaemon(ctx); err != nil {
			return nil, err
		}
		durations = append(durations, float64(time.Since(began).Microseconds())/1000)
	}
	return []Figure{lower("start to ready, median of 7", median(durations), "ms", 300)}, nil
}

// convergeAgain runs the converge loop without a change. A reload converges once before it answers.
func convergeAgain(ctx context.Context, n *harness.Node) ([]Figure, error) {
	c := n.Client()
	if err := c.Reload(ctx); err != nil {
		return nil, err
	}
	before, err := snapshot(ctx, c, n.DaemonPID())
	if err != nil {
		return nil, err
	}
	const rounds = 50
	for range rounds {
		if err := c.Reload(ctx); err != nil {
			return nil, err
		}
	}
	after, err := snapshot(ctx, c, n.DaemonPID())
	if err != nil {
		return nil, err
	}
	count := float64(after.counters["converge.runs"] - before.counters["converge.runs"])
	if count < rounds {
		return nil, fmt.Errorf("only %v of %d converge runs were counted", count, rounds)
	}
	messages := float64(after.counters["worker.messages"]-before.counters["worker.messages"]) / count
	writes := float64(after.counters["writes"] - before.counters["writes"])
	cpu := (after.cpu - before.cpu).Seconds() * 1000 / count
	return []Figure{
		lower("converge again: worker messages a GPU", messages/8, "", 1),
		lower("converge again: writes", writes, "", 0),
		lower("converge again: daemon CPU", cpu, "ms", 20),
	}, nil
}

type sample struct {
	counters map[string]uint64
	cpu      time.Duration
}

func snapshot(ctx context.Context, c *client.Client, pid int) (sample, error) {
	counters, err := c.Counters(ctx)
	if err != nil {
		return sample{}, err
	}
	cpu, err := cpuTime(pid)
	return sample{counters, cpu}, err
}

func statusLoad(ctx context.Context, n *harness.Node) ([]Figure, error) {
	open, err := openLoop(ctx, n.Socket(), 64, 5000, 5*time.Second)
	if err != nil {
		return nil, err
	}
	rate, err := closedLoop(ctx, n.Socket(), 64, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return []Figure{
		lower("GET /v1/status at 5000/s over 64 connections, p99", open.p99.Seconds()*1000, "ms", 5),
		higher("GET /v1/status at 5000/s: answered", open.rate, "/s", 4950),
		higher("GET /v1/status, closed loop over 64 connections", rate, "/s", 15000),
	}, nil
}

// commandLine measures a whole process, from its start to its exit.
func commandLine(ctx context.Context, n *harness.Node) ([]Figure, error) {
	var durations []float64
	for range 30 {
		began := time.Now()
		if r := n.CLI(ctx, "status"); r.Code != 0 {
			return nil, fmt.Errorf("gpushare status failed: %s", r.Err)
		}
		durations = append(durations, float64(time.Since(began).Microseconds())/1000)
	}
	return []Figure{lower("gpushare status, whole process, median of 30", median(durations), "ms", 25)}, nil
}

// idleTime is the measured time: two observations of the node, and six readings of the health of each GPU.
const idleTime = 60 * time.Second

// memoryAndIdle measures the idle daemon with all that it started: also the front and the thaw watchdog, where they run.
func memoryAndIdle(ctx context.Context, n *harness.Node) ([]Figure, error) {
	programs, err := programsOf(n)
	if err != nil {
		return nil, err
	}
	u, err := useOf(ctx, programs, idleTime)
	if err != nil {
		return nil, err
	}
	memory, err := memoryFiguresOf("", programs)
	if err != nil {
		return nil, err
	}
	return append(memory, u.figures("idle", 0.3, map[string]float64{daemonName: 25, workerName: 100})...), nil
}

// memoryFiguresOf are the resident memory of daemon and worker against its target, and that of each program.
func memoryFiguresOf(name string, programs []program) ([]Figure, error) {
	var each []Figure
	var both float64
	for _, p := range programs {
		m, err := residentMiB(p.pid)
		if err != nil {
			return nil, err
		}
		if p.name == daemonName || p.name == workerName {
			both += m
		}
		each = append(each, figure(name+"resident memory of "+p.name, []float64{m}, "MiB", "lower", nil))
	}
	return append([]Figure{lower(name+"resident memory of daemon and worker", both, "MiB", 40)}, each...), nil
}

func residentMiB(pid int) (float64, error) { return memoryMiB(pid, "VmRSS:") }

// peakMiB is the largest resident set so far.
func peakMiB(pid int) (float64, error) { return memoryMiB(pid, "VmHWM:") }

func memoryMiB(pid int, key string) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory of process %d: %w", pid, err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, key); ok {
			var kib float64
			_, err := fmt.Sscan(v, &kib)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, key)
}

// The names of processes, which the kernel cuts after 15 bytes.
const (
	daemonName = "gpushared"
	workerName = "gpushare-nvml"
)

// program is a running process of the product.
type program struct {
	pid  int
	name string
}

// programsOf returns the daemon and what it started that runs as long as it does: the worker, the front and the thaw watchdog.
func programsOf(n *harness.Node) ([]program, error) {
	pids := []int{n.DaemonPID()}
	if thaw := n.ThawPID(); thaw != 0 {
		pids = append(pids, thaw)
	}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.DaemonPID()))
	if err != nil {
		return nil, fmt.Errorf("cannot list the daemon's children: %w", err)
	}
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return nil, fmt.Errorf("cannot read %s: %w", l, err)
			}
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	var found []program
	worker := false
	for _, pid := range slices.Compact(pids) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue // one of those that end by themselves, such as getent
		}
		if name := strings.TrimSpace(string(b)); strings.HasPrefix(name, "gpushare") {
			found, worker = append(found, program{pid, name}), worker || name == workerName
		}
	}
	if !worker {
		return nil, errors.New("the daemon has no worker")
	}
	return found, nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
