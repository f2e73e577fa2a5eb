package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// costTime is the measured time: one observation of the node.
const costTime = 30 * time.Second

// readingsCounter is the daemon's counter of the time in the driver for readings, in µs.
const readingsCounter = "worker.readings.us"

// costCase is a number of leases on each GPU. The wake-ups of threads have targets too: a busy machine adds few.
type costCase struct {
	name   string
	leases int
	forks  int // processes of other programs, each second
	target float64
	wakes  map[string]float64
}

var costCases = []costCase{
	{"64 leases on 8 GPUs", 8, 0, 3, map[string]float64{daemonName: 600, workerName: 220}},
	{"8 leases alone on 8 GPUs", 1, 0, 0.5, map[string]float64{daemonName: 60, workerName: 150}},
	{"8 leases alone on 8 GPUs, 1 000 forks/s of other programs", 1, 1000, 0.5, nil},
}

// cost measures the CPU time of the daemon and what it started: with eight leases on each of eight GPUs, with
// one, and with one while other programs start 1 000 processes each second.
func (b *bench) cost(ctx context.Context) ([]Figure, error) {
	var figures []Figure
	for i := range costCases {
		f, err := b.costOf(ctx, &costCases[i])
		if err != nil {
			return figures, err
		}
		figures = append(figures, f...)
	}
	return figures, nil
}

// costOf is the CPU time of each program, its wake-ups and its memory, and the time in the driver in ms for each second and GPU, with a
// number of leases on each of eight GPUs, while other programs start processes. A list of processes takes 4 ms in the virtual driver.
func (b *bench) costOf(ctx context.Context, c *costCase) (figures []Figure, failed error) {
	n, err := b.startNode(ctx, samplers[0])
	if n != nil {
		defer func() { failed = errors.Join(failed, n.Close()) }()
	}
	if err != nil {
		return nil, err
	}
	var list []scenario
	for range virtualGPUs {
		list = append(list, scenario{name: "cost", loads: equal(c.leases, queue50)})
	}
	all, err := startScenarios(ctx, n, list)
	defer stopAll(all)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, b.warmUp); err != nil {
		return nil, err
	}
	programs, err := programsOf(n)
	if err != nil {
		return nil, err
	}
	if b.freezes() && n.ThawPID() == 0 {
		return nil, errors.New("there is no thaw watchdog")
	}
	counters, err := n.Client().Counters(ctx)
	if err != nil {
		return nil, err
	}
	if c.forks > 0 {
		stop, err := forkOthers(ctx, c.forks)
		if err != nil {
			return nil, err
		}
		defer func() { failed = errors.Join(failed, stop()) }()
	}
	u, err := useOf(ctx, programs, costTime)
	if err != nil {
		return nil, err
	}
	now, err := n.Client().Counters(ctx)
	if err != nil {
		return nil, err
	}
	if c.leases > 1 && b.freezes() && now["freezes"] == counters["freezes"] {
		return nil, errors.New("no lease was frozen: this is not the cost of time shares")
	}
	driver := float64(now[readingsCounter]-counters[readingsCounter]) / 1000 / u.elapsed.Seconds() / virtualGPUs
	if driver == 0 {
		return nil, fmt.Errorf("the daemon's counter %s did not move", readingsCounter)
	}
	memory, err := memoryFiguresOf(c.name+": ", programs)
	if err != nil {
		return nil, err
	}
	figures = u.figures(c.name, c.target, c.wakes)
	figures = append(figures, lower(c.name+": time in the driver for readings, by the daemon's own counter", driver, "ms/s and GPU", 2))
	return append(figures, memory...), stillRun(all)
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
