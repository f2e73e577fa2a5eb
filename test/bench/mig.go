package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/mig"
)

// planner measures the MIG planner: from every layout of every board to random layouts, with one instance in use; and the
// number of requests of a replay that are placed. It needs no node.
func planner(ctx context.Context) ([]Figure, error) {
	all, err := board.All()
	if err != nil {
		return nil, err
	}
	var durations []time.Duration
	var most uint64
	for _, b := range all {
		p := b.GPUProfiles()
		states := layouts(p)
		for i, from := range states {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			// Two targets for each layout, far apart in the list, so that they differ much.
			for _, to := range [][]mig.Present{states[(i*7919+1)%len(states)], states[(i*104729+5)%len(states)]} {
				present := slices.Clone(from)
				if len(present) > 0 {
					present[i%len(present)].InUse = true
				}
				var want []mig.Request
				for _, x := range to {
					want = append(want, mig.Request{Name: name(p, x)})
				}
				best := time.Hour
				for range 3 { // The best of three, because other programs run on this machine.
					began := time.Now()
					// An infeasible request has an answer too: the nearest feasible layout.
					_, _ = mig.Plan(p, present, want, mig.Options{})
					best = min(best, time.Since(began))
				}
				durations = append(durations, best)
				if i%16 == 0 { // It stops all goroutines, so not for each plan.
					most = max(most, allocated(func() { _, _ = mig.Plan(p, present, want, mig.Options{}) }))
				}
			}
		}
	}
	slices.Sort(durations)
	figures := []Figure{
		lower(fmt.Sprintf("MIG plan of a GPU, p99 of %d", len(durations)), durations[len(durations)*99/100].Seconds()*1000, "ms", 1),
		lower("MIG plan of a GPU, most memory allocated", float64(most)/1024, "KiB", 1024),
	}
	accepted, err := replays(replaySeeds)
	if err != nil {
		return nil, err
	}
	for _, load := range mixes {
		n := accepted[load.name]
		figures = append(figures, higher(fmt.Sprintf("MIG requests accepted of %d, %s, mean of %d seeds (first fit %.1f, best fit %.1f)",
			replayRequests, load.name, replaySeeds, n["first fit"], n["best fit"]), n["gpushare"], "", max(n["first fit"], n["best fit"])))
	}
	return figures, nil
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func name(p gpu.Profiles, x mig.Present) string {
	return p.GI[slices.IndexFunc(p.GI, func(q gpu.Profile) bool { return q.ID == x.ProfileID })].Name
}

// layouts lists all layouts of a GPU by adding one instance after the other at every free placement.
func layouts(p gpu.Profiles) [][]mig.Present {
	var out [][]mig.Present
	var grow func(have []mig.Present, from int)
	grow = func(have []mig.Present, from int) {
		out = append(out, have)
		for i, q := range p.GI {
			for j, at := range q.Placements {
				rank := i<<8 | j // Each set once: in ascending order.
				if rank < from {
					continue
				}
				if next, err := mig.AddPresent(p, slices.Clip(have), q.Name, at.Start, false); err == nil {
					grow(next, rank+1)
				}
			}
		}
	}
	grow(nil, 0)
	return out
}
