package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/shares"
)

const (
	// referenceWarmUp and referenceWindow are for what is compared with: nothing learns there, and nothing varies.
	referenceWarmUp = 3 * time.Second
	referenceWindow = 20 * time.Second
	// shortWindow is the shorter window of the targets. It is the longest error that a user of a GPU notices.
	shortWindow = 10 * time.Second
	// readEvery is the distance of two readings of the virtual GPUs, and so the error of the longest wait.
	readEvery = 50 * time.Millisecond
	// virtualGPUs is the number of GPUs of the virtual node.
	virtualGPUs = 8
)

// load is one tenant of a scenario: its share of the GPU in percent, and the arguments of its program.
type load struct {
	share float64
	burn  string
	low   bool // its grant has latency: low
}

// scenario is a set of tenants on one GPU.
type scenario struct {
	name  string
	loads []load
	// gpuBound: every tenant always has queued work, so the GPU need not be idle.
	gpuBound bool
	// reference: shares are not enforced, for comparison.
	reference bool
}

// references are what a scenario with a tenant that waits for its host is compared with: all without enforcement, and each tenant
// alone, which is what its host lets it use.
func references(list []scenario) (out []scenario) {
	for _, sc := range list {
		if sc.gpuBound {
			continue
		}
		out = append(out, scenario{name: sc.name + ", side by side", loads: sc.loads, reference: true})
		for i, l := range sc.loads {
			out = append(out, scenario{name: fmt.Sprintf("%s, tenant %d alone", sc.name, i+1), loads: []load{l}, reference: true})
		}
	}
	return out
}

func equal(n int, burn string) (loads []load) {
	for range n {
		loads = append(loads, load{share: 100 / float64(n), burn: burn})
	}
	return loads
}

// The queues of the loads: 50 ms, and 400 ms next to 20 ms, of random length.
const (
	queue50  = "--kernel 5ms --queue 10"
	queue400 = "--kernel 5ms --queue 80 --jitter 0.3 --seed 1"
	queue20  = "--kernel 5ms --queue 4 --jitter 0.3 --seed 2"
)

var scenarios = []scenario{
	{name: "30/70, 50 ms", loads: []load{{share: 30, burn: queue50}, {share: 70, burn: queue50}}, gpuBound: true},
	{name: "30/70, 400/20 ms ± 30 %", loads: []load{{share: 30, burn: queue400}, {share: 70, burn: queue20}}, gpuBound: true},
	{name: "10/90, 50 ms", loads: []load{{share: 10, burn: queue50}, {share: 90, burn: queue50}}, gpuBound: true},
	{
		name:     "10/20/30/40, 50 ms",
		loads:    []load{{share: 10, burn: queue50}, {share: 20, burn: queue50}, {share: 30, burn: queue50}, {share: 40, burn: queue50}},
		gpuBound: true,
	},
	{name: "eight equal, 50 ms", loads: equal(8, queue50), gpuBound: true},
	{
		name:  "30/70, synchronous 1 ms next to 50 ms",
		loads: []load{{share: 30, burn: "--kernel 1ms --queue 1 --sync"}, {share: 70, burn: queue50}},
	},
}

// scenarios are those that are chosen.
func (b *bench) scenarios() (out []scenario) {
	for _, sc := range scenarios {
		if strings.Contains(sc.name, b.scenario) {
			out = append(out, sc)
		}
	}
	return out
}

func scenarioNames() (out []string) {
	for _, sc := range scenarios {
		out = append(out, sc.name)
	}
	return out
}

// sampler is one way in which a driver samples utilisation, as a line of a node file.
type sampler struct{ name, line string }

// The first is the default of the virtual node. No GPU was seen that decides between them.
var samplers = []sampler{
	{"", ""},
	{"names at the instant, 168 ms, clock since boot", "sampler: {naming: instant, period: 168ms, clock: boot}\n"},
	{"names the last, 200 ms ± 20 %", "sampler: {naming: last, period: 200ms, jitter: 0.2, zero_when_idle: true}\n"},
	{"no series", "sampler: {series: missing}\n"},
}

// outcome is what one run of one scenario measured.
type outcome struct {
	rms10, rms60, worst10, bias, busy, wait float64
	status                                  float64 // the largest mean error of the busy time that status shows, in points
	first                                   float64 // what the first tenant had, in percent of the time
	p50, p99                                float64 // of its requests, in milliseconds; NaN if it has none
}

func (b *bench) fairnessLimit() time.Duration {
	once := b.warmUp + b.window + 30*time.Second
	if len(references(b.scenarios())) != 0 {
		once += referenceWarmUp + min(b.window, referenceWindow) + 30*time.Second
	}
	if b.full {
		once *= time.Duration(len(b.scenarios()) * len(samplers))
	}
	return time.Duration(b.runs)*once + time.Minute
}

// fairness measures shares of GPU time with the shipped programs, by the virtual GPUs' own count of busy time. All scenarios run
// at once, each on a GPU of its own, or one after the other with each sampler.
func (b *bench) fairness(ctx context.Context) ([]Figure, error) {
	if !b.freezes() {
		return b.skip("shares in real time", "root and cgroup v2, to freeze processes")
	}
	use := samplers
	if !b.full {
		use = samplers[:1]
	}
	var figures []Figure
	for _, s := range use {
		groups := [][]scenario{b.scenarios()}
		if b.full {
			groups = slices.Collect(slices.Chunk(b.scenarios(), 1))
		}
		for _, group := range groups {
			compared := references(group)
			outcomes := make([][]outcome, len(group)+len(compared))
			for range b.runs {
				got, err := b.runScenarios(ctx, s, group, b.warmUp, b.window)
				if err != nil {
					return figures, err
				}
				if len(compared) != 0 {
					more, err := b.runScenarios(ctx, s, compared, referenceWarmUp, min(b.window, referenceWindow))
					if err != nil {
						return figures, err
					}
					got = append(got, more...)
				}
				for i := range got {
					outcomes[i] = append(outcomes[i], got[i])
				}
			}
			next := len(group)
			for i, sc := range group {
				attainable := 1.0
				if !sc.gpuBound { // Its references follow in the order of the scenarios: side by side, and each tenant alone.
					attainable = sc.attainable(outcomes[next+1 : next+1+len(sc.loads)])
					next += 1 + len(sc.loads)
				}
				figures = append(figures, sc.figures(s, outcomes[i], attainable)...)
			}
			for i, sc := range compared {
				figures = append(figures, sc.figures(s, outcomes[len(group)+i], 1)...)
			}
		}
	}
	return figures, nil
}

// skip reports a part that cannot be measured here.
func (b *bench) skip(what, needs string) ([]Figure, error) {
	fmt.Fprintf(b.errs, "bench: skipped, needs %s: %s\n", needs, what)
	return nil, nil
}

// The columns of the table. Errors are in points of what was used.
const (
	columnMean  = "mean error"
	columnRMS10 = "RMS 10 s"
	columnRMS60 = "RMS 60 s"
	columnWorst = "worst 10 s"
	columnBusy  = "GPU busy, %"
	columnP50   = "request p50, ms"
	columnP99   = "request p99, ms"
	columnFirst = "it gets, %"
	columnWait  = "longest wait, s"
)

// attainable is how busy the GPU can be, 0…1, when each tenant has its share of what is used and alone keeps the GPU as busy
// as measured: a share of a part φ needs the part φ/alone of the time.
func (sc *scenario) attainable(alone [][]outcome) float64 {
	var parts, time float64
	for i, runs := range alone {
		var busy float64
		for _, o := range runs {
			busy += o.busy / 100 / float64(len(runs))
		}
		parts += sc.loads[i].share
		time += sc.loads[i].share / min(busy, 1)
	}
	return parts / time
}

// figures are those of one scenario, with the targets that apply to it. attainable is how busy the GPU can be, 0…1.
func (sc *scenario) figures(s sampler, runs []outcome, attainable float64) []Figure {
	name := sc.name
	if s.name != "" {
		name += ", " + s.name
	}
	target := func(v float64) *float64 { return &v }
	bound97 := target(97 * attainable)
	var bound10, bound60 *float64
	if sc.gpuBound {
		bound10, bound60 = target(2), target(1)
	}
	var out []Figure
	add := func(what, unit, better string, target *float64, value func(outcome) float64) {
		var values []float64
		for _, o := range runs {
			values = append(values, value(o))
		}
		if slices.ContainsFunc(values, math.IsNaN) { // the run was shorter than this window
			return
		}
		f := figure(what, values, unit, better, target)
		f.Scenario = name
		out = append(out, f)
	}
	if sc.reference {
		if len(sc.loads) > 1 {
			add(columnMean, "points", "lower", nil, func(o outcome) float64 { return o.bias })
		}
		add(columnBusy, "%", "higher", nil, func(o outcome) float64 { return o.busy })
		return out
	}
	add(columnMean, "points", "lower", target(1), func(o outcome) float64 { return o.bias })
	add(columnRMS10, "points", "lower", bound10, func(o outcome) float64 { return o.rms10 })
	add(columnRMS60, "points", "lower", bound60, func(o outcome) float64 { return o.rms60 })
	add(columnWorst, "points", "lower", nil, func(o outcome) float64 { return o.worst10 })
	add(columnBusy, "%", "higher", bound97, func(o outcome) float64 { return o.busy })
	add(columnWait, "s", "lower", target(5), func(o outcome) float64 { return o.wait })
	add("error of status, points", "points", "lower", nil, func(o outcome) float64 { return o.status })
	return out
}

// running is a scenario that runs on one GPU of a node.
type running struct {
	scenario
	gpu    gpu.UUID
	jobs   []*harness.Job
	logs   []*requestLog // of each tenant
	record shares.Record
	shown  [][]shown // of each tenant
}

// shown is the busy time of a lease in status, in percent of the last 10 s, and when it was read.
type shown struct {
	at   time.Duration
	busy float64
}

// runScenarios runs scenarios once, each on a GPU of its own. The shares of references are not enforced.
func (b *bench) runScenarios(ctx context.Context, s sampler, list []scenario, warmUp, window time.Duration) (out []outcome, err error) {
	n, err := b.startNode(ctx, s)
	if n != nil {
		defer func() { err = errors.Join(err, n.Close()) }()
	}
	if err != nil {
		return nil, err
	}
	all, err := startScenarios(ctx, n, list)
	defer stopAll(all)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, warmUp); err != nil { // The scheduler learns in this time.
		return nil, err
	}
	for _, r := range all {
		for _, log := range r.logs {
			log.take()
		}
	}
	if err := read(ctx, n, all, window); err != nil {
		return nil, err
	}
	for _, r := range all {
		o, err := r.outcome()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		out = append(out, o)
	}
	return out, nil
}

// startNode starts a virtual node of eight GPUs without MIG, and the daemon on it.
func (b *bench) startNode(ctx context.Context, s sampler) (*harness.Node, error) {
	dir, err := os.MkdirTemp("", "gpushare-bench-")
	if err != nil {
		return nil, fmt.Errorf("cannot create a directory: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "node.yaml")
	text := fmt.Sprintf("driver: \"580\"\ngpus:\n  - {model: H100-SXM5-80GB, count: %d}\n%s"+
		"latency: {DeviceGetMemoryInfo: 12us, \"DeviceGet*RunningProcesses\": 4ms}\n", virtualGPUs, s.line)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("cannot write the node file: %w", err)
	}
	n := &harness.Node{Bin: b.bin, File: file}
	return n, n.Start(ctx)
}

// tenant is the name of a tenant of a scenario.
func tenant(scenario, load int) string { return fmt.Sprintf("s%d-t%d", scenario, load) }

// startScenarios applies one spec for all scenarios, which are all references or none is, and starts their programs. What it started is
// returned also with an error.
func startScenarios(ctx context.Context, n *harness.Node, list []scenario) ([]*running, error) {
	var gpus, tenants strings.Builder
	for i, sc := range list {
		fmt.Fprintf(&gpus, "  - {select: {index: %d}, mode: timeslice}\n", i)
		for k, l := range sc.loads {
			latency := ""
			if l.low {
				latency = ", latency: low"
			}
			fmt.Fprintf(
				&tenants, "  - name: %s\n    grants: [{name: part, timeslice: {share: %g%%, gpu_memory: 2GiB}, gpus: {index: %d}%s}]\n",
				tenant(i, k), l.share, i, latency,
			)
		}
	}
	enforce := "on"
	if list[0].reference {
		enforce = "off"
	}
	spec := "version: v1\nnode: {enforce: " + enforce + "}\ngpus:\n" + gpus.String() + "tenants:\n" + tenants.String()
	if r := n.CLIIn(ctx, spec, "apply", "-f", "-"); r.Code != 0 {
		return nil, fmt.Errorf("cannot apply the spec: %s", r.Err)
	}
	st, err := n.Client().Status(ctx)
	if err != nil {
		return nil, err
	}
	var all []*running
	for i, sc := range list {
		r := &running{scenario: sc, gpu: gpu.UUID(st.GPUs[i].UUID), shown: make([][]shown, len(sc.loads))}
		all = append(all, r)
		for k, l := range sc.loads {
			args := append(
				[]string{"-q", "-t", tenant(i, k), "--grant", "part", "--"},
				n.Burn(append([]string{"--memory", "1GiB"}, strings.Fields(l.burn)...)...)...)
			log := &requestLog{}
			j, err := n.RunTo(log, args...)
			if err != nil {
				return all, err
			}
			r.jobs, r.logs = append(r.jobs, j), append(r.logs, log)
		}
	}
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, r := range all {
		for _, j := range r.jobs {
			if err := j.AwaitLine(wait, "ready"); err != nil {
				return all, fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	return all, nil
}

// read reads the busy times of the virtual GPUs, and those in status, for a time.
func read(ctx context.Context, n *harness.Node, all []*running, window time.Duration) error {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	began, nextStatus := time.Now(), shortWindow
	for {
		before := time.Since(began)
		truth, err := server.Control(ctx, n.Root(), server.Command{Do: server.DoStatus})
		if err != nil {
			return err
		}
		at := (before + time.Since(began)) / 2
		busy := map[gpu.UUID]map[int]float64{}
		for i := range truth.Status.GPUs {
			busy[truth.Status.GPUs[i].Identity.UUID] = truth.Status.GPUs[i].Busy
		}
		for _, r := range all {
			x := shares.Reading{At: at}
			for k, j := range r.jobs {
				v, ok := busy[r.gpu][j.PID()]
				if !ok {
					return fmt.Errorf("%s: the program of tenant %d is not on its GPU: %s", r.name, k+1, j.Output())
				}
				x.Busy = append(x.Busy, v)
			}
			r.record = append(r.record, x)
		}
		if at >= nextStatus {
			nextStatus += time.Second
			if err := readStatus(ctx, n, all, began); err != nil {
				return err
			}
		}
		if at >= window {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readStatus reads the busy time of every lease in status.
func readStatus(ctx context.Context, n *harness.Node, all []*running, began time.Time) error {
	st, err := n.Client().Status(ctx)
	if err != nil {
		return err
	}
	at := time.Since(began)
	for i, r := range all {
		for k := range r.loads {
			l := harness.Lease(st, tenant(i, k), "part")
			if l == nil {
				return fmt.Errorf("%s: tenant %d has no lease", r.name, k+1)
			}
			if l.Share != nil && l.Share.Busy != nil {
				r.shown[k] = append(r.shown[k], shown{at, *l.Share.Busy})
			}
		}
	}
	return nil
}

// outcome evaluates the record.
func (r *running) outcome() (o outcome, err error) {
	var targets []float64
	for _, l := range r.loads {
		targets = append(targets, l.share/100)
	}
	if slices.Contains(r.record.Between(0, r.record.End()), 0) {
		return o, errors.New("a tenant did not use the GPU at all")
	}
	o.rms10, o.worst10 = r.record.Deviation(targets, shortWindow)
	o.rms60, _ = r.record.Deviation(targets, time.Minute)
	o.bias, o.busy, o.wait = r.record.Bias(targets), r.record.Busy(), r.record.LongestWait().Seconds()
	o.status = r.statusError()
	o.first = 100 * r.record.Between(0, r.record.End())[0] / r.record.End().Seconds()
	o.p50, o.p99 = percentiles(r.logs[0].take())
	return o, nil
}

// statusError is the largest mean difference between the busy time in status and the true one of the same 10 s, in points of
// the GPU's time. NaN when status showed none.
func (r *running) statusError() float64 {
	worst := math.NaN()
	for k := range r.shown {
		var total float64
		n := 0
		for _, x := range r.shown[k] {
			if x.at < shortWindow {
				continue
			}
			truth := 100 * r.record.Between(x.at-shortWindow, x.at)[k] / shortWindow.Seconds()
			total += x.busy - truth
			n++
		}
		if n == 0 {
			continue
		}
		if e := math.Abs(total / float64(n)); math.IsNaN(worst) || e > worst {
			worst = e
		}
	}
	return worst
}
