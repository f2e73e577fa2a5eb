package enforce

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/quota"
)

const (
	// utilizationTimeout limits one query for samples.
	utilizationTimeout = time.Second
	// seriesRetry is the time after which a driver that lacks the series is queried again: it may have been replaced.
	seriesRetry = time.Minute
)

// measured is what was measured on a GPU. The slicer's lock protects it.
type measured struct {
	busy  quota.Busy // from the driver's samples of processes
	usage map[string]quota.Usage
	idle  idleWindow
}

// timeSampler reads the utilisation of a GPU.
type timeSampler struct {
	clock    quota.SampleClock
	since    uint64        // the newest row of a process, on the driver's clock
	listedAt time.Duration // when the rows were queried
	listTime time.Time
	seriesAt time.Duration // the earliest time of the next query for the series
	recorded map[string]time.Duration
}

// sampleLoop samples the GPU until ctx ends. It is a loop of its own: a driver that hangs delays no thaw.
func (sl *Slicer) sampleLoop(ctx context.Context, d *Enforcer, id gpu.UUID) {
	for loop.Every(ctx, quota.SamplesEvery) {
		sl.sample(ctx, d, id)
	}
}

// sample queries the driver for what is due.
func (sl *Slicer) sample(ctx context.Context, d *Enforcer, id gpu.UUID) {
	ctx, cancel := context.WithTimeout(ctx, utilizationTimeout)
	defer cancel()
	x := &sl.sampler
	now := time.Since(sl.epoch)
	sl.mu.Lock()
	series := sl.scheduler.SeriesDue(now) && now >= x.seriesAt
	sl.mu.Unlock()
	if series {
		sl.sampleGPU(ctx, d, id)
	}
	sl.mu.Lock()
	processes := sl.scheduler.ProcessesDue(now, x.listedAt)
	sl.mu.Unlock()
	if processes {
		sl.sampleProcesses(ctx, d, id)
	}
}

// sampleGPU reads the utilisation of the GPU since the last query. A driver that lacks it is no error: the scheduler then
// learns from the processes.
func (sl *Slicer) sampleGPU(ctx context.Context, d *Enforcer, id gpu.UUID) {
	x := &sl.sampler
	clocks, err := sl.clocks()
	if err != nil {
		return
	}
	series, err := d.Driver.UtilizationSeries(ctx, id, x.clock.Since())
	if err != nil {
		if errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrMissing) {
			x.seriesAt = clocks.Now + seriesRetry
		}
		return
	}
	// Status shows it too: the slower readings of processes may see only the moment in which a lease was frozen.
	if s, ok := newest(series.Samples); ok && x.clock.IsNew(s) && d.Samples.PutUtilization(id, s.Percent, d.Now()) {
		d.Invalidate()
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.scheduler.ObserveUtilization(time.Since(sl.epoch), x.clock.Convert(id, clocks, series.Samples))
	sl.measured.idle.add(clocks.Now, sl.scheduler.Status().IdleWhileWaiting)
}

// newest is the sample with the latest time; a driver may give them in any order.
func newest(samples []gpu.SeriesSample) (s gpu.SeriesSample, ok bool) {
	if len(samples) == 0 {
		return s, false
	}
	return slices.MaxFunc(samples, func(a, b gpu.SeriesSample) int { return cmp.Compare(a.Time, b.Time) }), true
}

// sampleProcesses reads the utilisation of the processes since the last query, and reports it with the occupancy to the
// account.
func (sl *Slicer) sampleProcesses(ctx context.Context, d *Enforcer, id gpu.UUID) {
	x := &sl.sampler
	now, at := time.Since(sl.epoch), time.Now()
	list, newest, err := d.Driver.Utilization(ctx, id, x.since)
	known := err == nil
	if known {
		x.since = max(x.since, newest)
	}
	leaseOf := d.Attribution.LeaseLookup(len(list))
	sl.mu.Lock()
	elapsed := time.Since(sl.epoch)
	var busy map[string]float64
	if known {
		pids := map[int]string{}
		for i := range list {
			pids[list[i].PID], _ = leaseOf(list[i].PID)
		}
		busy = quota.PartsOf(list, func(pid int) string { return pids[pid] })
		sl.scheduler.ObservePIDs(elapsed, pids)
		var from time.Duration
		if from, known = sl.scheduler.ObserveProcesses(elapsed, x.listedAt, now, busy); known {
			sl.measured.busy.Add(from, now, busy)
		}
	}
	uses := sl.scheduler.Usage(elapsed)
	clear(sl.measured.usage)
	for i := range uses {
		sl.measured.usage[uses[i].Lease] = uses[i]
	}
	begun, ended := sl.updateUngated(uses)
	sl.mu.Unlock()
	d.reportUngated(id, begun, ended)
	if !x.listTime.IsZero() {
		sl.record(d, id, at, uses, busy, known)
	}
	x.listedAt, x.listTime = now, at
}

// record reports the time since the last query to the account. Occupancy that is known late counts for the time in which it
// became known, and at most as much as passed.
func (sl *Slicer) record(d *Enforcer, id gpu.UUID, at time.Time, list []quota.Usage, busy map[string]float64, known bool) {
	x := &sl.sampler
	length := at.Sub(x.listTime)
	before := x.recorded
	x.recorded = make(map[string]time.Duration, len(list))
	for i := range list {
		u := &list[i]
		l, ok := d.Table.Get(u.Lease)
		if !ok {
			continue
		}
		occupancy := min(max(u.Occupancy-before[u.Lease], 0), length)
		x.recorded[u.Lease] = before[u.Lease] + occupancy
		interval := usage.Interval{
			Subject: usage.Subject{
				Lease:      l.ID,
				Generation: l.Generation,
				Tenant:     l.Terms.Tenant,
				Grant:      l.Terms.Spec.Name,
				User:       l.User,
				GPU:        id,
			},
			From:      x.listTime,
			To:        at,
			Occupancy: &occupancy,
		}
		if known {
			part := min(busy[u.Lease], 1)
			interval.Busy = &usage.Busy{Time: time.Duration(part * float64(length)), Variance: quota.BusyVariance(part, length)}
		}
		d.record(&interval)
	}
}

// clocks reads the clocks of the scheduler and of the driver's samples.
func (sl *Slicer) clocks() (quota.Clocks, error) {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return quota.Clocks{}, err
	}
	now := time.Now()
	return quota.Clocks{Now: now.Sub(sl.epoch), Epoch: uint64(now.UnixMicro()), Boot: uint64(boot.Nano() / 1000)}, nil
}

// idleWindow has the readings of a sum, for its growth over the last ten seconds.
type idleWindow struct {
	at  []time.Duration
	sum []time.Duration
}

func (w *idleWindow) add(at, sum time.Duration) {
	w.at, w.sum = append(w.at, at), append(w.sum, sum)
	for len(w.at) > 2 && w.at[1] <= at-busyWindow {
		w.at, w.sum = w.at[1:], w.sum[1:]
	}
}

// part is how much the sum grew in the time of the readings, 0…1. ok is false when that is too short.
func (w *idleWindow) part() (part float64, ok bool) {
	if len(w.at) < 2 {
		return 0, false
	}
	length := w.at[len(w.at)-1] - w.at[0]
	return float64(w.sum[len(w.sum)-1]-w.sum[0]) / float64(length), length >= leastWindow
}
