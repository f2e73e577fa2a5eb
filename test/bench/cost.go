package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// costTime is the measured time. The kernel counts CPU time in steps of 10 ms: an error of 0.03 % of a core.
const costTime = 30 * time.Second

// readingsCounter is the daemon's counter of the time in the driver for readings, in µs.
const readingsCounter = "worker.readings.us"

// cost measures the CPU time of the daemon and what it started: with eight leases on each of eight GPUs, with
// one, and with one while other programs start 1 000 processes each second.
func (b *bench) cost(ctx context.Context) ([]Figure, error) {
	var figures []Figure
	for _, c := range []struct {
		name   string
		leases int
		forks  int // processes of other programs, each second
		target float64
	}{{"64 leases on 8 GPUs", 8, 0, 3}, {"8 leases alone on 8 GPUs", 1, 0, 0.5}, {"8 leases alone on 8 GPUs, 1 000 forks/s of other programs", 1, 1000, 0.5}} {
		percent, driver, err := b.costOf(ctx, c.leases, c.forks)
		if err != nil {
			return figures, err
		}
		var total float64
		for _, v := range percent {
			total += v
		}
		name := fmt.Sprintf("%s: CPU of all programs over %s", c.name, costTime)
		figures = append(figures, lower(name, total, "% of a core", c.target))
		for _, program := range slices.Sorted(maps.Keys(percent)) {
			figures = append(figures, figure(c.name+": of that, "+program, []float64{percent[program]}, "% of a core", "lower", nil))
		}
		figures = append(figures, lower(c.name+": time in the driver for readings, by the daemon's own counter", driver, "ms/s and GPU", 2))
	}
	return figures, nil
}

// costOf is the CPU time of each program in percent of a core, and the time in the driver in ms for each second and GPU, with a
// number of leases on each of eight GPUs, while other programs start processes. A list of processes takes 4 ms in the virtual driver.
func (b *bench) costOf(ctx context.Context, leases, forks int) (percent map[string]float64, driver float64, failed error) {
	n, err := b.startNode(ctx, samplers[0])
	if n != nil {
		defer func() { failed = errors.Join(failed, n.Close()) }()
	}
	if err != nil {
		return nil, 0, err
	}
	var list []scenario
	for range virtualGPUs {
		list = append(list, scenario{name: "cost", loads: equal(leases, queue50)})
	}
	all, err := startScenarios(ctx, n, list)
	defer stopAll(all)
	if err != nil {
		return nil, 0, err
	}
	if err := pause(ctx, b.warmUp); err != nil {
		return nil, 0, err
	}
	programs, err := programsOf(n)
	if err != nil {
		return nil, 0, err
	}
	if b.freezes() && n.ThawPID() == 0 {
		return nil, 0, errors.New("there is no thaw watchdog")
	}
	counters, err := n.Client().Counters(ctx)
	if err != nil {
		return nil, 0, err
	}
	if forks > 0 {
		stop, err := forkOthers(ctx, forks)
		if err != nil {
			return nil, 0, err
		}
		defer func() { failed = errors.Join(failed, stop()) }()
	}
	began, before := time.Now(), map[int]time.Duration{}
	for _, p := range programs {
		if before[p.pid], err = cpuTime(p.pid); err != nil {
			return nil, 0, err
		}
	}
	if err := pause(ctx, costTime); err != nil {
		return nil, 0, err
	}
	percent = map[string]float64{}
	elapsed := time.Since(began)
	for _, p := range programs {
		after, err := cpuTime(p.pid)
		if err != nil {
			return nil, 0, err
		}
		percent[p.name] += 100 * (after - before[p.pid]).Seconds() / elapsed.Seconds()
	}
	now, err := n.Client().Counters(ctx)
	if err != nil {
		return nil, 0, err
	}
	if leases > 1 && b.freezes() && now["freezes"] == counters["freezes"] {
		return nil, 0, errors.New("no lease was frozen: this is not the cost of time shares")
	}
	driver = float64(now[readingsCounter]-counters[readingsCounter]) / 1000 / elapsed.Seconds() / virtualGPUs
	if driver == 0 {
		return nil, 0, fmt.Errorf("the daemon's counter %s did not move", readingsCounter)
	}
	return percent, driver, stillRun(all)
}

// stillRun fails if a program has ended: the figure would be that of fewer leases.
func stillRun(all []*running) error {
	for _, r := range all {
		for k, j := range r.jobs {
			select {
			case <-j.Done():
				return fmt.Errorf("%s: the program of tenant %d has ended: %s", r.name, k+1, j.Output())
			default:
			}
		}
	}
	return nil
}

func stopAll(all []*running) {
	var jobs []*harness.Job
	for _, r := range all {
		jobs = append(jobs, r.jobs...)
	}
	done := make(chan struct{}, len(jobs))
	for _, j := range jobs {
		go func() {
			j.Stop()
			done <- struct{}{}
		}()
	}
	for range jobs {
		<-done
	}
}

// pause waits for the time of a measurement.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
