package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gpushare/gpushare/test/fairness"
)

// simulatedRow is one row of the table: the worst of all its variants and seeds.
type simulatedRow struct {
	fairness.Scenario
	name     string
	mode     fairness.Mode
	variants []fairness.Variant
	figures  []fairness.Figures
}

// simulatedRows are the rows of a scenario: no enforcement, plain duty cycling, and the scheduler with the samplers that have a
// series of utilisation, with those that have none, and with those that sample seldom, or with each alone.
func simulatedRows(sc fairness.Scenario, each bool) (rows []*simulatedRow) {
	variants := fairness.Variants()
	for _, mode := range []fairness.Mode{fairness.SideBySide, fairness.DutyCycle} {
		rows = append(rows, &simulatedRow{Scenario: sc, name: string(mode), mode: mode, variants: variants[:1]})
	}
	if each {
		for i, v := range variants {
			rows = append(rows, &simulatedRow{Scenario: sc, name: v.Name, mode: fairness.Enforced, variants: variants[i : i+1]})
		}
		return rows
	}
	with, without := &simulatedRow{Scenario: sc, mode: fairness.Enforced}, &simulatedRow{Scenario: sc, mode: fairness.Enforced}
	seldom := &simulatedRow{Scenario: sc, mode: fairness.Enforced}
	for _, v := range variants {
		switch {
		case v.NoSeries:
			without.variants = append(without.variants, v)
		case v.Slow():
			seldom.variants = append(seldom.variants, v)
		default:
			with.variants = append(with.variants, v)
		}
	}
	with.name = fmt.Sprintf("%s, %d samplers", fairness.Enforced, len(with.variants))
	without.name = fmt.Sprintf("%s, no series, %d samplers", fairness.Enforced, len(without.variants))
	seldom.name = fmt.Sprintf("%s, %d samplers of 0.5 and 1 s", fairness.Enforced, len(seldom.variants))
	return append(rows, with, without, seldom)
}

// simulated runs the scheduler in virtual time, next to no enforcement and plain duty cycling.
func (b *bench) simulated(ctx context.Context) ([]Figure, error) {
	var rows []*simulatedRow
	for _, sc := range fairness.Scenarios() {
		rows = append(rows, simulatedRows(sc, b.full)...)
	}
	next := make(chan *simulatedRow)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for r := range next {
				for _, v := range r.variants {
					for seed := range uint64(b.seeds) {
						r.figures = append(r.figures, fairness.Run(r.Scenario, v, r.mode, seed+1))
					}
				}
			}
		})
	}
	for _, r := range rows {
		if ctx.Err() != nil {
			break
		}
		next <- r
	}
	close(next)
	workers.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("the simulation did not end: %w", err)
	}
	var out []Figure
	for _, r := range rows {
		out = append(out, simulatedFigures(r.Name+" · "+r.name, r.mode == fairness.Enforced, &r.Scenario, r.figures)...)
	}
	return out, nil
}

// simulatedFigures has the targets of loads that keep the GPU busy only for the scheduler.
func simulatedFigures(name string, enforced bool, sc *fairness.Scenario, runs []fairness.Figures) (out []Figure) {
	target := func(applies bool, v float64) *float64 {
		if !applies {
			return nil
		}
		return &v
	}
	bound := enforced && sc.Bound
	add := func(what, unit, better string, target *float64, value func(fairness.Figures) float64) {
		var values []float64
		for _, f := range runs {
			values = append(values, value(f))
		}
		f := figure(what, values, unit, better, target)
		f.Scenario = name
		out = append(out, f)
	}
	add(columnMean, "points", "lower", nil, func(f fairness.Figures) float64 { return f.Bias })
	add(columnRMS10, "points", "lower", target(bound, 2), func(f fairness.Figures) float64 { return f.RMS10 })
	add(columnRMS60, "points", "lower", target(bound, 1), func(f fairness.Figures) float64 { return f.RMS60 })
	add(columnWorst, "points", "lower", nil, func(f fairness.Figures) float64 { return f.Worst10 })
	add(columnBusy, "%", "higher", target(bound, 97), func(f fairness.Figures) float64 { return f.Busy })
	if i := slices.IndexFunc(runs[0].Latency, func(l fairness.Latency) bool { return l.Requests > 0 }); i >= 0 {
		of := func(value func(fairness.Latency) time.Duration) func(fairness.Figures) float64 {
			return func(f fairness.Figures) float64 { return float64(value(f.Latency[i]).Milliseconds()) }
		}
		add(columnP50, "ms", "lower", nil, of(func(l fairness.Latency) time.Duration { return l.P50 }))
		add(columnP99, "ms", "lower", nil, of(func(l fairness.Latency) time.Duration { return l.P99 }))
		add(columnFirst, "%", "higher", nil, func(f fairness.Figures) float64 { return f.Of[i] })
	}
	add(
		columnWait, "s", "lower", target(enforced, longestFreeze(sc).Seconds()),
		func(f fairness.Figures) float64 { return f.Longest.Seconds() },
	)
	return out
}

// longestFreeze is the longest time for which the scheduler of a scenario may freeze a lease.
func longestFreeze(sc *fairness.Scenario) time.Duration {
	if sc.Config.MaxFrozen != 0 {
		return sc.Config.MaxFrozen
	}
	return 5 * time.Second
}
