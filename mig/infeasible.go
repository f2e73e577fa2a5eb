package mig

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/text"
)

// Infeasible is the error for requests that cannot be placed, with the nearest layout that can.
type Infeasible struct {
	Requested []Request
	Reason    string
	// Blocked are the instances in the way that more authority could destroy: in use (--force) or foreign. Empty when no
	// authority helps.
	Blocked []Present
	// Pinned are the instances in the way that no authority may destroy.
	Pinned []Present
	// Nearest is the largest part of the requests that fits, with what must be kept; Plan accepts it. May be empty.
	Nearest []Request
	// StoppedAfter is the number of steps after which the search for the nearest layout was stopped; 0: it was not.
	StoppedAfter int
}

// Error names the requests, the reason and what fits.
func (e *Infeasible) Error() string {
	s := "cannot change the MIG layout: " + e.Reason
	if len(e.Requested) != 0 {
		s = fmt.Sprintf("cannot place %s: %s", listText(e.Requested), e.Reason)
	}
	if len(e.Nearest) != 0 {
		s += "; what fits is " + listText(e.Nearest)
	}
	if e.StoppedAfter != 0 {
		s += "; " + e.Stopped()
	}
	return s
}

// Stopped says that the nearest layout is not known; empty when it is.
func (e *Infeasible) Stopped() string {
	if e.StoppedAfter == 0 {
		return ""
	}
	return fmt.Sprintf("stopped looking for the nearest layout after %d steps", e.StoppedAfter)
}

// Is makes errors.Is(err, gpu.ErrInUse) true for refusals that --force would lift.
func (e *Infeasible) Is(target error) bool {
	return target == gpu.ErrInUse && slices.ContainsFunc(e.Blocked, func(b Present) bool { return b.InUse })
}

// explain finds the reason why there is no solution, simple reasons first, and the nearest layout.
func (pr *problem) explain(requests []Request) error {
	e := &Infeasible{Requested: requests}
	empty, err := newProblem(pr.p, nil, requests, pr.opts)
	if err != nil {
		return err
	}
	empty.work = newWork(nearestSteps, pr.opts)
	switch ok := empty.fits(empty.counts()); {
	case empty.work.over():
		e.Reason = "the placements that this GPU supports, or its existing instances, do not allow this combination"
	case !ok:
		e.Reason = empty.reason()
	default:
		e.Reason, e.Blocked, e.Pinned = pr.blocking(requests)
	}
	e.Nearest, e.StoppedAfter = pr.nearest()
	if pr.work.cancelled {
		return pr.work.err()
	}
	return e
}

// reason returns why the requests do not even fit on the empty GPU.
func (pr *problem) reason() string {
	need := uint32(0)
	var of, me, all, plain int
	count := func(n, profile int, size uint32) {
		need += uint32(n) * size
		of += n
		r := pr.rules[profile]
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
	for i, c := range pr.classes {
		n := len(c.requests)
		if len(pr.places(c)) == 0 {
			q := &pr.p.GI[c.profiles[0]]
			return fmt.Sprintf("%s is not a placement that this GPU supports; %s starts at %s", c.request, q.Name, startsText(q))
		}
		if limit := pr.limit(i); n > limit {
			name := pr.p.GI[c.profiles[0]].Name
			if len(c.profiles) > 1 {
				name = c.request.String()
			}
			if c.sub != 0 {
				name = fmt.Sprintf("%dc.%s", c.sub, name)
			}
			return fmt.Sprintf("this GPU supports at most %d of %s, %d are requested", limit, name, n)
		}
		if c.sub == 0 {
			count(n, c.choices[0].profile, smallest(c.choices))
		}
	}
	for i := range pr.groups {
		g := &pr.groups[i]
		q := &pr.p.GI[g.profiles[0]]
		fewest := -1
		for bins := range pr.divisions(g, pr.counts(), pr.maxInstances(q)) {
			if fewest < 0 || len(bins) < fewest {
				fewest = len(bins)
			}
		}
		if fewest < 0 {
			slices := uint32(0)
			for _, m := range g.members {
				slices += uint32(len(pr.classes[m].requests)) * pr.classes[m].sub
			}
			return fmt.Sprintf(
				"this GPU supports at most %d of %s, and the %d requested compute slices do not fit into their %d each",
				pr.maxInstances(q), q.Name, slices, q.Slices,
			)
		}
		count(fewest, g.profiles[0], q.Placements[0].Size)
	}
	switch {
	case me > pr.maxMe:
		return fmt.Sprintf("this GPU supports at most %d instance with the attribute me, %d are requested", pr.maxMe, me)
	case all > 0 && of > 1 && (plain > 0 || all > 1):
		return "an instance with the attribute me.all uses all media engines, so every other instance must have a -me profile"
	case need > pr.p.Width:
		return fmt.Sprintf("they need %d memory slices, this GPU has %d", need, pr.p.Width)
	}
	return fmt.Sprintf(
		"%d of %d memory slices would be enough, but the placements that this GPU supports do not allow this combination", need,
		pr.p.Width,
	)
}

// places lists the possible placements of a class; for a compute instance those of its GPU instance.
func (pr *problem) places(c class) []choice {
	if c.sub == 0 {
		return c.choices
	}
	return pr.choicesFor(Request{At: c.request.At}, c.profiles)
}

// maxInstances is the largest number of instances of a profile that the device reports.
func (pr *problem) maxInstances(q *gpu.Profile) int {
	if q.Max != 0 {
		return int(q.Max)
	}
	return len(q.Placements)
}

// limit is the largest number of requests of a class that the empty device has. pr has no instances. By the driver's numbers it
// would be their sum for properties that several profiles have: seven 1g.5gb and four 1g.10gb use the same slices.
func (pr *problem) limit(at int) int {
	c := pr.classes[at]
	most := pr.mostReported(c)
	if len(c.profiles) < 2 {
		return most
	}
	for n := min(most, len(c.requests), int(pr.p.Width)); n > 0; n-- {
		counts := make([]int, len(pr.classes))
		if counts[at] = n; pr.fits(counts) {
			return n
		}
		if pr.work.over() {
			break
		}
	}
	return most
}

// mostReported is the sum of the numbers of instances that the driver reports for the profiles of a class.
func (pr *problem) mostReported(c class) int {
	limit := 0
	for _, i := range c.profiles {
		n := pr.maxInstances(&pr.p.GI[i])
		if c.sub != 0 {
			n *= int(pr.p.GI[i].Slices / c.sub)
		}
		limit += n
	}
	return limit
}

// smallest is the fewest memory slices among some choices.
func smallest(list []choice) uint32 {
	return slices.MinFunc(list, func(a, b choice) int { return cmp.Compare(a.place.Size, b.place.Size) }).place.Size
}

// blocking names the instances in the way that must be kept: those that the least disturbing plan would destroy if it were
// allowed to. blocked are those that more authority could destroy, kept those that none may.
func (pr *problem) blocking(requests []Request) (why string, blocked, kept []Present) {
	o, movable := pr.opts, slices.Clone(pr.present)
	o.Force = true
	for i := range movable {
		movable[i].Pinned = false
	}
	forced, err := newProblem(pr.p, movable, requests, o)
	if err != nil {
		return err.Error(), nil, nil
	}
	best, ok := forced.solve(forced.counts())
	if forced.work.over() {
		return "the existing instances are in the way", nil, nil
	}
	if !ok {
		return "the existing instances leave no placement free", nil, nil
	}
	var pinned, used, foreign []string
	for i, b := range pr.present {
		if (best.matched|best.extra)&(1<<i) != 0 || pr.pinned&(1<<i) == 0 {
			continue
		}
		name := placedOf(pr.p, b.Instance).String()
		if len(b.InUseBy) != 0 {
			name += " (" + step.Join(b.InUseBy) + ")"
		}
		switch {
		case b.Pinned:
			pinned, kept = append(pinned, name), append(kept, b)
			continue
		case b.InUse:
			used = append(used, name)
		default:
			foreign = append(foreign, name)
		}
		blocked = append(blocked, b)
	}
	var parts []string
	if len(pinned) != 0 {
		// No authority may destroy these, so none helps.
		parts, blocked = append(parts, strings.Join(pinned, ", ")+verb(pinned)+" pinned and would have to be destroyed"), nil
	}
	if len(used) != 0 {
		parts = append(parts, strings.Join(used, ", ")+verb(used)+" in use and would have to be destroyed")
	}
	if len(foreign) != 0 {
		parts = append(parts, strings.Join(foreign, ", ")+verb(foreign)+" not managed by gpushare and would have to be destroyed")
	}
	return strings.Join(parts, ", and "), blocked, kept
}

func verb(list []string) string {
	if len(list) == 1 {
		return " is"
	}
	return " are"
}

// nearest finds the largest part of the requests that fits together with what must be kept. cut is the number of steps after
// which it stopped looking, 0: it did not.
func (pr *problem) nearest() (_ []Request, cut int) {
	pr.work = newWork(nearestSteps, pr.opts)
	best := pr.largestPart(pr.counts(), pr.keepable|pr.pinned)
	switch {
	case pr.work.over():
		return nil, pr.work.steps
	case best == nil:
		return nil, 0
	}
	counts := make([]int, len(best.counts))
	for i, n := range best.counts {
		counts[i] = int(n)
	}
	// The solution that changes least: instances that must be kept satisfy requests where they can.
	s, ok := pr.solveKeepingPinned(counts)
	if !ok {
		return nil, pr.work.steps
	}
	return pr.requestsOf(s, counts), 0
}

// requestsOf converts a partial solution to requests that Plan accepts.
func (pr *problem) requestsOf(s solution, counts []int) []Request {
	var out []Request
	for i, n := range counts {
		for range n {
			out = append(out, pr.classes[i].request)
		}
	}
	for rest := s.extra & pr.pinned &^ pr.keepable; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		if pr.profile[i] < 0 {
			continue
		}
		placed := placedOf(pr.p, pr.present[i].Instance)
		out = append(out, Request{Name: placed.Name, At: &placed.Placement, Compute: placed.Compute})
	}
	return out
}

// maxListed is the most kinds of requests that a sentence lists: more than a GPU has places for.
const maxListed = 20

// listText lists requests in a sentence and counts equal ones.
func listText(requests []Request) string {
	var names []string
	count := map[string]int{}
	for _, req := range requests {
		s := req.String()
		if count[s]++; count[s] == 1 {
			names = append(names, s)
		}
	}
	for i, s := range names {
		if n := count[s]; n > 1 {
			names[i] = fmt.Sprintf("%d × %s", n, s)
		}
		names[i] = text.Short(names[i], maxShown)
	}
	if len(names) > maxListed {
		names = append(names[:maxListed], fmt.Sprintf("and %d more kinds", len(names)-maxListed))
	}
	return strings.Join(names, ", ")
}
