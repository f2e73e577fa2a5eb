package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/gpushare/gpushare/test/memorysim"
)

// memoryRuns is the number of seeds for each backend.
const memoryRuns = 1000

// memory runs the escalation of GPU memory in virtual time, with neighbours that grow too. docs/quota.md has the table.
func (b *bench) memory(ctx context.Context) ([]Figure, error) {
	var out []Figure
	for _, backend := range []memorysim.Backend{memorysim.None, memorysim.Reactive, memorysim.Cgroup} {
		runs, err := memoryResults(ctx, backend)
		if err != nil {
			return nil, err
		}
		for _, s := range memorysim.Summarize(runs) {
			out = append(out, memoryFigures(backend, s)...)
		}
	}
	return out, nil
}

func memoryResults(ctx context.Context, backend memorysim.Backend) ([]memorysim.Result, error) {
	runs, errs := make([]memorysim.Result, memoryRuns), make([]error, memoryRuns)
	seeds := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range seeds {
				runs[i], errs[i] = memorysim.Run(ctx, uint64(i)+1, backend)
			}
		})
	}
	for i := range memoryRuns {
		seeds <- i
	}
	close(seeds)
	workers.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// memoryFigures is one row of the table. Only the harm that the daemon does itself has a target, and with the driver's limit
// also what neighbours lose.
func memoryFigures(backend memorysim.Backend, s memorysim.Summary) (out []Figure) {
	row := fmt.Sprintf("memory, %s: offenders at %g GiB/s", backend, s.Rate)
	if s.Rate == 0 {
		row = fmt.Sprintf("memory, %s: all", backend)
	}
	none := 0.0
	starved := &none
	if backend != memorysim.Cgroup {
		starved = nil
	}
	add := func(name string, value float64, unit string, target *float64) {
		f := figure(name, []float64{value}, unit, "lower", target)
		f.Scenario = row
		out = append(out, f)
	}
	add("overshoot, median", s.Median, "GiB", nil)
	add("overshoot, 95 %", s.P95, "GiB", nil)
	add("overshoot, worst", s.Worst, "GiB", nil)
	add("neighbours frozen or stopped", float64(s.Harmed), "", &none)
	add("neighbours out of memory", float64(s.Starved), "", starved)
	add("neighbours", float64(s.Within), "", nil)
	return out
}
