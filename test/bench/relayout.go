package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// relayout compares the full re-layout of eight GPUs with that of the slowest of them alone: GPUs change in parallel. A call
// that creates or destroys an instance takes 50 ms here. The measured time is that of the whole command.
func relayout(ctx context.Context, n *harness.Node) ([]Figure, error) {
	const boards = 8
	for _, calls := range []string{"*Create*", "*Destroy"} {
		if err := n.Ctl(ctx, nil, "latency", calls, "50ms"); err != nil {
			return nil, err
		}
	}
	small, large := "[1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]", "[4g.20gb, 3g.20gb]"
	apply := func(layouts []string) (time.Duration, error) {
		var b strings.Builder
		b.WriteString("version: v1\nnode: {enforce: on}\ngpus:\n")
		for i, l := range layouts {
			fmt.Fprintf(&b, "  - {select: {index: %d}, mode: mig, mig: {layout: %s}}\n", i, l)
		}
		began := time.Now()
		if r := n.CLIIn(ctx, b.String(), "apply", "-f", "-"); r.Code != 0 {
			return 0, fmt.Errorf("cannot change the layouts: %s", r.Err)
		}
		return time.Since(began), nil
	}
	layouts := slices.Repeat([]string{small}, boards)
	if _, err := apply(layouts); err != nil {
		return nil, err
	}
	var slowest time.Duration
	for i := range layouts {
		layouts[i] = large
		elapsed, err := apply(layouts)
		if err != nil {
			return nil, err
		}
		slowest = max(slowest, elapsed)
	}
	if _, err := apply(slices.Repeat([]string{small}, boards)); err != nil {
		return nil, err
	}
	all, err := apply(slices.Repeat([]string{large}, boards))
	if err != nil {
		return nil, err
	}
	return []Figure{
		lower(fmt.Sprintf("full re-layout of 8 GPUs (%.2f s) against the slowest alone (%.2f s)", all.Seconds(), slowest.Seconds()),
			all.Seconds()/slowest.Seconds(), "times", 1.3),
	}, nil
}
