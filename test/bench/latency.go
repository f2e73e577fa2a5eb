package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// requestLog collects how long requests took from the output of a virtual program that answers them.
type requestLog struct {
	mu        sync.Mutex // protects the fields
	rest      []byte     // of a line
	durations []float64  // in milliseconds
}

// Write is called with the output.
func (l *requestLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.rest = rest
		if v, ok := bytes.CutPrefix(line, []byte("request ")); ok {
			if ms, err := strconv.ParseFloat(string(bytes.TrimSuffix(v, []byte(" ms"))), 64); err == nil {
				l.durations = append(l.durations, ms)
			}
		}
	}
}

// take returns what was collected since the last call.
func (l *requestLog) take() []float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.durations
	l.durations = nil
	return out
}

// percentiles of durations; NaN without any.
func percentiles(v []float64) (p50, p99 float64) {
	if len(v) == 0 {
		return math.NaN(), math.NaN()
	}
	slices.Sort(v)
	return v[len(v)/2], percentile99(v)
}

// serviceLoad answers 20 requests in a second, which arrive at random, with 5 ms of GPU time each: 10 % of it.
const serviceLoad = "--kernel 5ms --queue 1 --every 50ms"

// enforcement is how a service runs next to training.
type enforcement string

const (
	nothing    enforcement = "nothing enforced"
	shared     enforcement = "shares"
	lowLatency enforcement = "latency: low"
)

// services are a service with 20 % next to training with 80 %, by the kernels of the training.
func services(e enforcement) (out []scenario) {
	for _, training := range []struct{ kernel, queue string }{{"5ms", "10"}, {"20ms", "3"}, {"200ms", "2"}} {
		out = append(out, scenario{
			name: "training with kernels of " + training.kernel + ", " + string(e),
			loads: []load{
				{share: 20, burn: serviceLoad, low: e == lowLatency},
				{share: 80, burn: "--kernel " + training.kernel + " --queue " + training.queue},
			},
			reference: e == nothing,
		})
	}
	return out
}

// switchings are the ways in which the virtual GPUs switch between processes.
var switchings = []sampler{
	{"kernels are interrupted", "switching: {slice: 2ms}\n"},
	{"kernels are not interrupted", "switching: {slice: 2ms, whole_kernels: true}\n"},
}

func (b *bench) latencyLimit() time.Duration {
	once := b.warmUp + referenceWarmUp + 2*b.window + time.Minute
	return time.Duration(b.runs*len(switchings))*once + time.Minute
}

// latency measures how long the requests of a service take next to training, in real time, with the shipped programs.
func (b *bench) latency(ctx context.Context) ([]Figure, error) {
	if !b.freezes() {
		return b.skip("requests in real time", "root and cgroup v2, to freeze processes")
	}
	var figures []Figure
	for _, s := range switchings {
		free, kept := services(nothing), slices.Concat(services(shared), services(lowLatency))
		outcomes := make([][]outcome, len(free)+len(kept))
		for range b.runs {
			got, err := b.runScenarios(ctx, s, free, referenceWarmUp, b.window)
			if err != nil {
				return figures, err
			}
			more, err := b.runScenarios(ctx, s, kept, b.warmUp, b.window)
			if err != nil {
				return figures, err
			}
			for i, o := range slices.Concat(got, more) {
				outcomes[i] = append(outcomes[i], o)
			}
		}
		for i, sc := range slices.Concat(free, kept) {
			figures = append(figures, sc.latencyFigures(s, outcomes[i], outcomes[i%len(free)])...)
		}
	}
	return figures, nil
}

// withinSideBySide is how much longer than with nothing enforced a request takes at most, in milliseconds, next to kernels of 5 ms.
const withinSideBySide = 20

// latencyFigures are those of one scenario. free are the outcomes of the same loads with nothing enforced.
func (sc *scenario) latencyFigures(s sampler, runs, free []outcome) (out []Figure) {
	values := func(list []outcome, of func(outcome) float64) (v []float64) {
		for _, o := range list {
			v = append(v, of(o))
		}
		return v
	}
	add := func(what, unit, better string, of func(outcome) float64) {
		f := figure(what, values(runs, of), unit, better, nil)
		f.Scenario = fmt.Sprintf("%s; %s", sc.name, s.name)
		out = append(out, f)
	}
	add(columnP50, "ms", "lower", func(o outcome) float64 { return o.p50 })
	p99 := func(o outcome) float64 { return o.p99 }
	add(columnP99, "ms", "lower", p99)
	if sc.loads[1].burn == services(nothing)[0].loads[1].burn && !sc.reference {
		f := figure(columnP99, values(runs, p99), "ms", "lower", new(slices.Max(values(free, p99))+withinSideBySide))
		f.Scenario = out[1].Scenario
		out[1] = f
	}
	add(columnFirst, "%", "higher", func(o outcome) float64 { return o.first })
	add(columnBusy, "%", "higher", func(o outcome) float64 { return o.busy })
	return out
}
