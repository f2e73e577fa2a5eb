package lease

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// sharedCapacity is what one shared GPU has left for reserved grants.
type sharedCapacity struct {
	gpu    *GPUView
	memory uint64  // in bytes
	share  float64 // in percent
	low    float64 // of grants with latency: low, in percent
	load   float64 // the sum of shares that it is chosen by: the least loaded first
}

// takes reports whether a grant fits.
func (c *sharedCapacity) takes(g *Grant) bool {
	return g.fitsLowLatency(c.low) && (c.gpu.Overcommit || g.memory() <= c.memory && g.percent() <= c.share+shareTolerance)
}

// shareTolerance is what a sum of shares may be above 100 by the rounding of floating point numbers.
const shareTolerance = 1e-9

// Limits of the search of fit: finding out whether grants fit on several GPUs is a bin packing problem.
const (
	fitStepsForSpec  = 20_000 // once for each proposed spec
	fitStepsForPlace = 1_000  // in each evaluation of the queue in which a reserved grant has no place
)

// fit chooses a GPU for each grant, so that on no GPU the memory or the shares are more than what is left. nil if there
// is no such choice. It is not decided if the search was too long.
func fit(grants []*Grant, on []sharedCapacity, maxSteps int) (chosen []int, decided bool) {
	usable := make([][]int, len(grants))
	order := make([]int, len(grants))
	for i, g := range grants {
		order[i] = i
		for j := range on {
			if g.mayUse(on[j].gpu) {
				usable[i] = append(usable[i], j)
			}
		}
	}
	// The grants with the fewest GPUs come first, of equals the largest.
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(
			cmp.Compare(len(usable[a]), len(usable[b])), cmp.Compare(grants[b].percent(), grants[a].percent()),
			cmp.Compare(grants[b].memory(), grants[a].memory()),
		)
	})
	left := slices.Clone(on)
	chosen = make([]int, len(grants))
	steps := 0
	var assign func(n int) bool
	assign = func(n int) bool {
		if n == len(order) {
			return true
		}
		g := grants[order[n]]
		candidates := slices.Clone(usable[order[n]])
		slices.SortStableFunc(candidates, func(a, b int) int { return cmp.Compare(left[a].load, left[b].load) })
		for _, j := range candidates {
			if steps++; steps > maxSteps {
				return false
			}
			if !left[j].takes(g) {
				continue
			}
			before := left[j]
			left[j].memory -= min(g.memory(), left[j].memory)
			left[j].share -= g.percent()
			left[j].low -= g.lowLatency()
			left[j].load += g.percent()
			chosen[order[n]] = j
			if assign(n + 1) {
				return true
			}
			left[j] = before
		}
		return false
	}
	if assign(0) {
		return chosen, true
	}
	return nil, steps <= maxSteps
}

// Misfit is a set of reserved grants that do not fit together on the GPUs that they may use, on each GPU the memory, the
// shares, and the shares of those with latency: low. Without any of them the rest fits.
type Misfit struct {
	Grants []Key
	GPUs   []gpu.UUID // in the driver's order
	// Memory, Share and LowLatency report which of the three alone does not fit; none: only together.
	Memory, Share, LowLatency bool
}

// ReservedMisfit returns reserved grants that do not fit together, even on an idle node; nil if all fit, or if that is
// too much to find out. Grants that fit on no GPU by themselves are left out.
func ReservedMisfit(v *View) *Misfit {
	for _, mode := range []string{api.ModeTimeslice, api.ModeMPS} {
		var on []sharedCapacity
		for i := range v.GPUs {
			d := &v.GPUs[i]
			if d.Mode != mode {
				continue
			}
			c := sharedCapacity{gpu: d, memory: d.budget(), share: fullShare, low: mostLowLatency}
			if d.Capacity == 0 { // It does not answer now.
				c.memory = math.MaxUint64
			}
			on = append(on, c)
		}
		var grants []*Grant
		for i := range v.Grants {
			g := &v.Grants[i]
			if g.Spec.Reserved && g.Kind() == mode &&
				slices.ContainsFunc(on, func(c sharedCapacity) bool { return g.mayUse(c.gpu) && c.takes(g) }) {
				grants = append(grants, g)
			}
		}
		if m := misfit(grants, on); m != nil {
			return m
		}
	}
	return nil
}

// misfit returns a smallest set of the grants that does not fit: without any of them the rest does.
func misfit(grants []*Grant, on []sharedCapacity) *Misfit {
	fits := func(grants []*Grant, on []sharedCapacity) bool {
		chosen, decided := fit(grants, on, fitStepsForSpec)
		return chosen != nil || !decided
	}
	if fits(grants, on) {
		return nil
	}
	for i := len(grants) - 1; i >= 0; i-- {
		if without := slices.Concat(grants[:i], grants[i+1:]); !fits(without, on) {
			grants = without
		}
	}
	m := &Misfit{}
	for _, g := range grants {
		m.Grants = append(m.Grants, g.Key())
	}
	onlyMemory, onlyShare, onlyLow := slices.Clone(on), slices.Clone(on), slices.Clone(on)
	for i := range on {
		onlyMemory[i].share, onlyMemory[i].low = math.Inf(1), math.Inf(1)
		onlyShare[i].memory, onlyShare[i].low = math.MaxUint64, math.Inf(1)
		onlyLow[i].memory, onlyLow[i].share = math.MaxUint64, math.Inf(1)
		if slices.ContainsFunc(grants, func(g *Grant) bool { return g.mayUse(on[i].gpu) }) {
			m.GPUs = append(m.GPUs, on[i].gpu.UUID)
		}
	}
	m.Memory, m.Share, m.LowLatency = !fits(grants, onlyMemory), !fits(grants, onlyShare), !fits(grants, onlyLow)
	return m
}
