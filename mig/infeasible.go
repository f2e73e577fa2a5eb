package mig

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// Infeasible says why a layout cannot be, and what could.
type Infeasible struct {
	Wanted []Want
	Reason string
	// Blocked are the instances in the way that more authority could move: in use (--force) or foreign. Empty when no
	// authority helps.
	Blocked []Present
	// Nearest is the largest part of the layout that fits, with what must stay; Plan accepts it. May be empty.
	Nearest []Want
}

// Error says what cannot be laid out, why, and what would fit.
func (e *Infeasible) Error() string {
	s := "cannot change the MIG layout: " + e.Reason
	if len(e.Wanted) != 0 {
		s = fmt.Sprintf("cannot lay out %s: %s", listText(e.Wanted), e.Reason)
	}
	if len(e.Nearest) != 0 {
		s += "; what fits is " + listText(e.Nearest)
	}
	return s
}

// Is makes errors.Is(err, gpu.ErrInUse) tell the refusals that --force would lift.
func (e *Infeasible) Is(target error) bool {
	return target == gpu.ErrInUse && slices.ContainsFunc(e.Blocked, func(b Present) bool { return b.InUse })
}

// explain finds out why there is no solution, from the coarse to the fine, and what the nearest layout is.
func (pr *problem) explain(want []Want) error {
	e := &Infeasible{Wanted: want}
	empty, err := newProblem(pr.p, nil, want, pr.opts)
	if err != nil {
		return err
	}
	if _, ok := empty.solve(empty.counts(), true); !ok {
		e.Reason = empty.reason()
	} else {
		e.Reason, e.Blocked = pr.inTheWay(want)
	}
	e.Nearest = pr.nearest()
	return e
}

// reason says why not even the empty GPU holds the wants.
func (pr *problem) reason() string {
	need := uint32(0)
	var of, me, all, plain int
	for _, c := range pr.classes {
		n := len(c.wants)
		if len(c.cands) == 0 {
			return fmt.Sprintf("%s is not a placement that this GPU allows", c.want)
		}
		if limit := pr.limit(c); n > limit {
			return fmt.Sprintf("this GPU holds at most %d of %s, %d are wanted", limit, pr.p.GI[c.cands[0].profile].Name, n)
		}
		need += uint32(n) * smallest(c)
		of += n
		r := pr.rules[c.cands[0].profile]
		switch {
		case r.all:
			all += n
		case !r.none:
			plain += n
		}
		if r.me {
			me += n
		}
	}
	switch {
	case me > pr.mes:
		return fmt.Sprintf("this GPU holds at most %d instance with the attribute me, %d are wanted", pr.mes, me)
	case all > 0 && of > 1 && (plain > 0 || all > 1):
		return "an instance with the attribute me.all takes all media engines, so that every other must be a -me profile"
	case need > pr.p.Width:
		return fmt.Sprintf("they need %d memory slices, this GPU has %d", need, pr.p.Width)
	}
	return fmt.Sprintf("by count they would fit (%d of %d memory slices), but the placements that this GPU allows hold them in no arrangement", need, pr.p.Width)
}

// limit is how many wants of a class the device holds at most by its own figures.
func (pr *problem) limit(c class) int {
	limit, seen := 0, map[int]bool{}
	for _, k := range c.cands {
		if seen[k.profile] {
			continue
		}
		seen[k.profile] = true
		if m := int(pr.p.GI[k.profile].Max); m != 0 {
			limit += m
		} else {
			limit += len(pr.p.GI[k.profile].Placements)
		}
	}
	return limit
}

// smallest is the fewest memory slices that a want of a class takes.
func smallest(c class) uint32 {
	return slices.MinFunc(c.cands, func(a, b cand) int { return cmp.Compare(a.place.Size, b.place.Size) }).place.Size
}

// inTheWay says which pinned instances stand in the way, by asking what the least disturbing forced plan would move.
func (pr *problem) inTheWay(want []Want) (string, []Present) {
	o := pr.opts
	o.Force = true
	forced, err := newProblem(pr.p, pr.present, want, o)
	if err != nil {
		return err.Error(), nil
	}
	best, ok := forced.solve(forced.counts(), false)
	if !ok {
		return "the instances that are present leave no room", nil
	}
	var blocked []Present
	var used, foreign []string
	for i, b := range pr.present {
		if (best.matched|best.spared)&(1<<i) != 0 || pr.pinned&(1<<i) == 0 {
			continue
		}
		blocked = append(blocked, b)
		name := placedOf(pr.p, b.Instance).String()
		if b.InUse {
			if len(b.Holders) != 0 {
				name += " (" + strings.Join(b.Holders, ", ") + ")"
			}
			used = append(used, name)
		} else {
			foreign = append(foreign, name)
		}
	}
	var why []string
	if len(used) != 0 {
		why = append(why, strings.Join(used, ", ")+verb(used)+" in use and would have to go")
	}
	if len(foreign) != 0 {
		why = append(why, strings.Join(foreign, ", ")+verb(foreign)+" not made by this configuration and would have to go")
	}
	return strings.Join(why, ", and "), blocked
}

func verb(list []string) string {
	if len(list) == 1 {
		return " is"
	}
	return " are"
}

// nearest finds the largest part of the wants that fits beside what must stay: the most instances, then the most
// memory, then the earlier classes.
func (pr *problem) nearest() []Want {
	most := make([]int, len(pr.classes))
	total := 0
	for i, c := range pr.classes {
		most[i] = min(len(c.wants), len(c.cands), pr.limit(c))
		total += most[i]
	}
	type part struct {
		counts []int
		memory uint64
	}
	for n := min(total, int(pr.p.Width)); n >= 0; n-- {
		var parts []part
		var pick func(i, left int, slicesLeft uint32, memory uint64, counts []int)
		pick = func(i, left int, slicesLeft uint32, memory uint64, counts []int) {
			if i == len(most) {
				if left == 0 {
					parts = append(parts, part{slices.Clone(counts), memory})
				}
				return
			}
			for k := min(left, most[i]); k >= 0; k-- {
				if k == 0 {
					pick(i+1, left, slicesLeft, memory, append(counts, 0))
					continue
				}
				c := pr.classes[i]
				if size := uint32(k) * smallest(c); size <= slicesLeft {
					pick(i+1, left-k, slicesLeft-size, memory+uint64(k)*pr.p.GI[c.cands[0].profile].Memory, append(counts, k))
				}
			}
		}
		pick(0, n, pr.p.Width, 0, nil)
		slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.memory, a.memory) })
		for _, p := range parts {
			if s, ok := pr.solve(p.counts, true); ok {
				return pr.wantsOf(s, p.counts)
			}
		}
	}
	return nil
}

// wantsOf words a partial solution as wants that Plan accepts.
func (pr *problem) wantsOf(s solution, counts []int) []Want {
	var out []Want
	for i, n := range counts {
		for range n {
			out = append(out, pr.classes[i].want)
		}
	}
	for rest := s.spared & pr.pinned &^ pr.free; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		if pr.profile[i] < 0 {
			continue
		}
		placed := placedOf(pr.p, pr.present[i].Instance)
		out = append(out, Want{Name: placed.Name, At: &placed.Placement, Compute: placed.Compute})
	}
	return out
}

// listText names wants in a sentence, equals counted.
func listText(want []Want) string {
	var names []string
	count := map[string]int{}
	for _, w := range want {
		s := w.String()
		if count[s]++; count[s] == 1 {
			names = append(names, s)
		}
	}
	for i, s := range names {
		if n := count[s]; n > 1 {
			names[i] = fmt.Sprintf("%d × %s", n, s)
		}
	}
	return strings.Join(names, ", ")
}

// bytesText prints bytes for people.
func bytesText(b uint64) string {
	const mib, gib = 1 << 20, 1 << 30
	switch {
	case b >= gib:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(b)/gib), ".0") + " GiB"
	case b >= mib:
		return fmt.Sprintf("%d MiB", b/mib)
	}
	return fmt.Sprintf("%d bytes", b)
}
