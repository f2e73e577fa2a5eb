package mig

import (
	"iter"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// group is the requests for compute instances that may share GPU instances: those of one profile, and of one placement if it
// is fixed. How they are combined is part of the search, because existing instances may already have them and each new GPU
// instance costs memory.
type group struct {
	request  Request // for a GPU instance
	profiles []int
	members  []int // indexes of classes, the largest compute instances first
}

// group forms the groups from the classes that may share.
func (pr *problem) group() {
	for i, c := range pr.classes {
		if c.sub == 0 {
			continue
		}
		gpuInstance := Request{Name: pr.p.GI[c.profiles[0]].Name, At: c.request.At}
		at := slices.IndexFunc(pr.groups, func(g group) bool {
			return slices.Equal(g.profiles, c.profiles) && g.request.samePlace(gpuInstance)
		})
		if at < 0 {
			at = len(pr.groups)
			pr.groups = append(pr.groups, group{request: gpuInstance, profiles: c.profiles})
		}
		pr.groups[at].members = append(pr.groups[at].members, i)
	}
	for _, g := range pr.groups {
		slices.SortStableFunc(g.members, func(a, b int) int { return int(pr.classes[b].sub) - int(pr.classes[a].sub) })
	}
}

// arrangements returns every way to assign the given number of requests of each class to GPU instances: one GPU instance for
// each request for a GPU instance, and every division of the compute instances of a group among GPU instances. Those that need
// more memory slices than the GPU has are left out.
func (pr *problem) arrangements(counts []int) iter.Seq[[]job] {
	return func(yield func([]job) bool) {
		var jobs []job
		free := int(pr.p.Width)
		for i, c := range pr.classes {
			if c.sub != 0 || counts[i] == 0 {
				continue
			}
			if counts[i] > len(c.choices) {
				return
			}
			free -= counts[i] * int(smallest(c.choices))
			jobs = append(jobs, job{request: c.request, choices: c.choices, n: counts[i], class: i, group: -1})
		}
		if free >= 0 {
			pr.divide(0, free, counts, jobs, yield)
		}
	}
}

// divide adds the jobs of the groups that start at index gi. They may use free memory slices.
func (pr *problem) divide(gi, free int, counts []int, jobs []job, yield func([]job) bool) bool {
	if gi == len(pr.groups) {
		return yield(slices.Clone(jobs))
	}
	g := &pr.groups[gi]
	size := int(pr.smallestOf(g))
	for bins := range pr.divisions(g, counts, min(pr.maxInstances(&pr.p.GI[g.profiles[0]]), free/size)) {
		more := slices.Clip(jobs)
		for i := 0; i < len(bins); {
			n := 1
			for i+n < len(bins) && slices.Equal(bins[i], bins[i+n]) {
				n++
			}
			req := g.request
			for _, sub := range bins[i] {
				req.Compute = append(req.Compute, gpu.NewCompute{Slices: sub})
			}
			more = append(more, job{request: req, choices: pr.choicesFor(req, g.profiles), n: n, class: -1, group: gi})
			i += n
		}
		if !pr.divide(gi+1, free-len(bins)*size, counts, more, yield) {
			return false
		}
	}
	return !pr.work.over()
}

// smallestOf is the fewest memory slices of a GPU instance of a group; at least 1.
func (pr *problem) smallestOf(g *group) uint32 {
	least := pr.p.Width
	for _, i := range g.profiles {
		for _, at := range pr.p.GI[i].Placements {
			least = min(least, at.Size)
		}
	}
	return max(least, 1)
}

// divisions returns every division of a group's compute instances among at most some GPU instances, the fullest first. The GPU
// instances of a division, and the compute instances in each, are in falling order.
func (pr *problem) divisions(g *group, counts []int, most int) iter.Seq[[][]uint32] {
	return func(yield func([][]uint32) bool) {
		left := make([]int, len(g.members))
		items, need := 0, 0
		for i, m := range g.members {
			left[i] = counts[m]
			items += counts[m]
			need += counts[m] * int(pr.classes[m].sub)
		}
		if items == 0 {
			yield(nil)
			return
		}
		q := &pr.p.GI[g.profiles[0]]
		if need > most*int(q.Slices) {
			return
		}
		var bins [][]uint32
		var fill func(bin []uint32, from int, space uint32) bool
		// next starts a GPU instance with the largest compute instance that is left, or yields the complete division.
		next := func() bool {
			i := slices.IndexFunc(left, func(n int) bool { return n > 0 })
			if i < 0 {
				return yield(bins)
			}
			if len(bins) == most {
				return true
			}
			sub := pr.classes[g.members[i]].sub
			left[i]--
			ok := fill([]uint32{sub}, i, q.Slices-sub)
			left[i]++
			return ok
		}
		// fill adds further compute instances to the open GPU instance, largest first, and then closes it.
		fill = func(bin []uint32, from int, space uint32) bool {
			if !pr.work.step() {
				return false
			}
			for i := from; i < len(left); i++ {
				sub := pr.classes[g.members[i]].sub
				if left[i] == 0 || sub > space {
					continue
				}
				left[i]--
				ok := fill(append(slices.Clip(bin), sub), i, space-sub)
				left[i]++
				if !ok {
					return false
				}
			}
			// Only falling order, so that no division is returned twice.
			if n := len(bins); n > 0 && slices.Compare(bins[n-1], bin) < 0 {
				return true
			}
			bins = append(bins, bin)
			ok := next()
			bins = bins[:len(bins)-1]
			return ok
		}
		next()
	}
}

// fitsInside reports whether the missing compute instances of an instance can be created next to those it has.
func fitsInside(have []gpu.ComputeInstance, missing []gpu.NewCompute, width uint32) bool {
	var mask uint64
	total, placed := uint32(0), true
	for _, h := range have {
		placed = placed && h.Placement.Size != 0
		total += h.SliceCount()
		mask |= maskOf(h.Placement)
	}
	if !placed { // The driver does not report placements. It refuses what does not fit where they are.
		for _, l := range missing {
			total += l.Slices
		}
		return total <= width
	}
	for _, l := range gpu.ComputeOrder(missing) {
		at, found := gpu.Placement{Size: l.Slices}, false
		for ; at.Start+at.Size <= width && !found; at.Start += gpu.ComputeAlign(l.Slices) {
			if found = maskOf(at)&mask == 0 && (l.Placement == nil || *l.Placement == at); found {
				mask |= maskOf(at)
			}
		}
		if !found {
			return false
		}
	}
	return true
}
