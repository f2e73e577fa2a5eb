package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/hwtest/readings"
)

// watch reads the GPU straight through the library for a time: its memory, or its utilisation samples.
func (t *test) watch(ctx context.Context, window, every time.Duration, samples bool) ([]readings.Reading, error) {
	if t.watcher == "" {
		bin := filepath.Join(t.dir, "watch")
		if _, err := output(ctx, []string{"CGO_ENABLED=1"}, "go", "build", "-o", bin, "./test/hwtest/watch"); err != nil {
			return nil, fmt.Errorf("cannot build the program that reads the driver: %w", err)
		}
		t.watcher = bin
	}
	args, env := t.host.driverLibrary()
	argv := append(
		[]string{t.watcher, "-gpu", t.gpu, "-for", window.String(), "-every", every.String(), fmt.Sprintf("-samples=%t", samples)},
		args...)
	out, err := output(ctx, env, argv...)
	if err != nil {
		return nil, err
	}
	var list []readings.Reading
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var r readings.Reading
		err := d.Decode(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read what the driver reported: %w", err)
		}
		list = append(list, r)
	}
	if len(list) == 0 {
		return nil, errors.New("the driver was not read at all")
	}
	return list, nil
}

// watchDuring reads the GPU for a time while f runs. The readings begin about a second before f.
func (t *test) watchDuring(ctx context.Context, window, every time.Duration, samples bool, f func() error) ([]readings.Reading, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var list []readings.Reading
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		list, err = t.watch(ctx, window, every, samples)
	}()
	failed := pause(ctx, time.Second)
	if failed == nil {
		failed = f()
	}
	if failed != nil {
		cancel() // The readings are not needed.
	}
	<-done
	if failed != nil {
		return nil, failed
	}
	return list, err
}

// shortQueue is a program whose queued work ends at once when it is frozen, so that the phases of processes do not overlap.
var shortQueue = load{queue: 4, kernel: 2 * time.Millisecond}

// The parts of the measurement of samples, in order: one process alone, two in turn, none.
const (
	aloneTime = 4 * time.Second
	idleTime  = 3 * time.Second
)

// samples lets two processes run in turn, by freezing the other, and compares the driver's samples with that.
func (t *test) samples(ctx context.Context) error {
	t.title("Utilisation samples of the driver")
	a, err := t.start(ctx, shortQueue)
	defer end(a)
	if err != nil {
		return err
	}
	b, err := t.start(ctx, shortQueue)
	defer end(b)
	if err != nil {
		return err
	}
	if err := errors.Join(a.freeze(), b.freeze()); err != nil {
		return fmt.Errorf("cannot stop a program: %w", err)
	}
	var phases []readings.Phase
	var idleFrom uint64
	list, err := t.watchDuring(ctx, time.Second+aloneTime+t.window+idleTime+2*time.Second, 40*time.Millisecond, true, func() error {
		phases, err = t.phases(ctx, a, b)
		idleFrom = uint64(procfs.BootTime().Microseconds())
		return err
	})
	if err != nil {
		return err
	}
	t.reportSamples(list, phases, idleFrom)
	return nil
}

// phases lets one frozen process run alone, and then both in turn with breaks.
func (t *test) phases(ctx context.Context, a, b *process) ([]readings.Phase, error) {
	alone, err := t.phase(ctx, a, aloneTime)
	if err != nil {
		return nil, err
	}
	all := []readings.Phase{alone}
	r := rand.New(rand.NewPCG(1, uint64(a.PID())))
	for began := time.Now(); time.Since(began) < t.window; {
		for _, p := range []*process{a, b} {
			x, err := t.phase(ctx, p, time.Duration(40+r.IntN(200))*time.Millisecond)
			if err != nil {
				return nil, err
			}
			all = append(all, x)
			if err := pause(ctx, time.Duration(r.IntN(60))*time.Millisecond); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// phase lets a frozen process run for a time, freezes it, and returns when it used the GPU, on the clock since boot.
func (t *test) phase(ctx context.Context, p *process, d time.Duration) (x readings.Phase, err error) {
	x = readings.Phase{PID: p.PID(), From: uint64(procfs.BootTime().Microseconds())}
	if err := p.thaw(); err != nil {
		return x, fmt.Errorf("cannot continue a program: %w", err)
	}
	if err := pause(ctx, d); err != nil {
		return x, err
	}
	if err := p.freeze(); err != nil {
		return x, fmt.Errorf("cannot stop a program: %w", err)
	}
	at, err := p.drained(ctx, shortQueue.kernel)
	x.To = uint64((procfs.BootTime() - time.Since(at)).Microseconds())
	return x, err
}

// reportSamples compares the samples with the phases: times of the host's clock since boot, the first is that of one process alone.
func (t *test) reportSamples(list []readings.Reading, phases []readings.Phase, idleFrom uint64) {
	clock, lag, err := readings.FindClock(list)
	if err != nil {
		t.say("Not measured: %v", err)
		return
	}
	t.say("- clock of the samples: %s; a sample is %.0f ms old at the median when it is first read", clock, float64(lag)/1000)
	offset := int64(clock.Of(list[0])) - int64(list[0].Boot)
	at := func(boot uint64) uint64 { return uint64(int64(boot) + offset) }
	for i := range phases {
		phases[i].From, phases[i].To = at(phases[i].From), at(phases[i].To)
	}
	alone := phases[0]
	var series []gpu.SeriesSample
	var processes []gpu.UtilSample
	for _, r := range list {
		series, processes = append(series, r.Series...), append(processes, r.Processes...)
	}
	var times, processTimes []uint64
	for _, s := range series {
		times = append(times, s.Time)
	}
	for _, s := range processes {
		processTimes = append(processTimes, s.Time)
	}
	period := t.reportGaps("series of the GPU (nvmlDeviceGetSamples)", times, alone)
	if p := t.reportGaps("samples of processes", processTimes, alone); period == 0 {
		period = p
	}
	if e := list[0].SeriesError; e != "" {
		t.say("- the driver has no series of the GPU: %s", e)
	} else {
		full, ok := readings.Full(series, alone.From+period, alone.To)
		if ok {
			t.say("- percentage in the series while one process kept the GPU busy (90th percentile): %d", full)
		}
		t.say("- series while idle: %s", idleSamples(series, at(idleFrom)+2*period))
	}
	if period == 0 {
		t.say("- which process a sample names: not measured, the period is not known")
		return
	}
	t.say("- which process a sample names: %s", readings.FindNaming(processes, phases[1:], period, 8000))
}

func (t *test) reportGaps(what string, times []uint64, alone readings.Phase) (period uint64) {
	g, ok := readings.FindGaps(times, alone.From, alone.To)
	if !ok {
		t.say("- %s: too few to measure their period", what)
		return 0
	}
	t.say(
		"- %s: every %.1f ms at the median, %.1f to %.1f ms, while one process kept the GPU busy", what, float64(g.Median)/1000,
		float64(g.Shortest)/1000, float64(g.Longest)/1000,
	)
	return g.Median
}

// idleSamples describes the samples after a time from which nothing ran.
func idleSamples(series []gpu.SeriesSample, from uint64) string {
	var percents []int
	for _, s := range series {
		if s.Time > from {
			percents = append(percents, s.Percent)
		}
	}
	switch {
	case len(percents) == 0:
		return "it runs dry: no sample"
	case slices.Max(percents) == 0:
		return fmt.Sprintf("%d samples of 0 %%", len(percents))
	}
	return fmt.Sprintf("%d samples of up to %d %%, although nothing ran", len(percents), slices.Max(percents))
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
