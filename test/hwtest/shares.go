package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/shares"
)

// sharedLoad keeps 50 ms of work queued.
var sharedLoad = load{queue: 10, kernel: 5 * time.Millisecond}

// table measures shares of one GPU with leases, and the sum of their work next to that of plain time slicing.
func (t *test) table(ctx context.Context) error {
	t.title("Shares of one GPU")
	rate, err := t.alone(ctx)
	if err != nil {
		return err
	}
	t.say(
		"Kernels of %s, %d queued; %s after %s of warm-up; errors in points of what was used. The work of one program alone, without a lease, is 100 %%.\n",
		sharedLoad.kernel,
		sharedLoad.queue,
		t.window,
		t.warmUp,
	)
	t.say("| shares | got | mean error | RMS 10 s | worst 10 s | work of all | longest wait |\n|---|---|---|---|---|---|---|")
	for _, targets := range [][]float64{{30, 70}, {10, 90}, {10, 20, 30, 40}} {
		if err := t.row(ctx, targets, rate, true); err != nil {
			return err
		}
	}
	return t.row(ctx, []float64{50, 50}, rate, false)
}

// alone is the work of one program in GPU seconds per second.
func (t *test) alone(ctx context.Context) (float64, error) {
	p, err := t.start(ctx, sharedLoad)
	defer end(p)
	if err != nil {
		return 0, err
	}
	r, err := t.record(ctx, 3*time.Second, []*process{p})
	if err != nil {
		return 0, err
	}
	return r.Busy() / 100, nil
}

// row measures one set of shares: in leases that are frozen in turn, or without leases, by the GPU's own time slices.
func (t *test) row(ctx context.Context, targets []float64, alone float64, leases bool) error {
	name, parts := []string{}, make([]float64, len(targets))
	for i, v := range targets {
		name, parts[i] = append(name, fmt.Sprint(v)), v/100
	}
	title := strings.Join(name, "/")
	if leases {
		if err := t.applyShares(ctx, targets); err != nil {
			return err
		}
	} else {
		title = fmt.Sprintf("no leases, %d programs", len(targets))
	}
	var all []*process
	defer func() { end(all...) }()
	for i := range targets {
		var p *process
		var err error
		if leases {
			p, err = t.lease(ctx, shareTenant(i), sharedLoad)
		} else {
			p, err = t.start(ctx, sharedLoad)
		}
		if p != nil {
			all = append(all, p)
		}
		if err != nil {
			return err
		}
	}
	if leases {
		st, err := t.node.Client().Status(ctx)
		if err != nil {
			return err
		}
		if l := harness.Lease(st, shareTenant(0), "part"); l == nil || l.Share == nil || !l.Share.Enforced {
			return skipped("time shares are not enforced here, because processes cannot be frozen (see doctor above)")
		}
	}
	if err := pause(ctx, t.warmUp); err != nil { // The scheduler learns in this time.
		return err
	}
	r, err := t.record(ctx, t.window, all)
	if err != nil {
		return err
	}
	var got []string
	used := r.Between(0, r.End())
	var total float64
	for _, v := range used {
		total += v
	}
	if total == 0 {
		return fmt.Errorf("no program used the GPU")
	}
	for _, v := range used {
		got = append(got, fmt.Sprintf("%.1f", 100*v/total))
	}
	rms, worst := r.Deviation(parts, min(10*time.Second, r.End()))
	t.say(
		"| %s | %s | %.2f | %.2f | %.2f | %.1f %% | %.2f s |", title, strings.Join(got, "/"), r.Bias(parts), rms, worst, r.Busy()/alone,
		r.LongestWait().Seconds(),
	)
	return nil
}

func shareTenant(i int) string { return fmt.Sprintf("hwtest-s%d", i) }

// applyShares replaces the spec by one with these shares of the GPU.
func (t *test) applyShares(ctx context.Context, targets []float64) error {
	var b strings.Builder
	fmt.Fprintf(&b, "version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {uuid: %s}, mode: timeslice}\ntenants:\n", t.gpu)
	for i, v := range targets {
		fmt.Fprintf(&b, "  - name: %s\n    grants: [{name: part, timeslice: {share: %g%%, gpu_memory: 2GiB}}]\n", shareTenant(i), v)
	}
	if r := t.node.CLIIn(ctx, b.String(), "apply", "-f", "-", "--force"); r.Code != 0 {
		return fmt.Errorf("cannot apply the spec: %s", r.Err)
	}
	return nil
}

// record reads what programs have done on the GPU every 50 ms.
func (t *test) record(ctx context.Context, window time.Duration, all []*process) (shares.Record, error) {
	var r shares.Record
	began := time.Now()
	for {
		x := shares.Reading{At: time.Since(began)}
		for _, p := range all {
			v, err := p.finished(ctx)
			if err != nil {
				return nil, err
			}
			x.Busy = append(x.Busy, v)
		}
		r = append(r, x)
		if x.At >= window {
			return r, nil
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
