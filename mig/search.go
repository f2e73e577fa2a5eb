package mig

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// maxWidth is the number of bits in the search's masks; known grids are 4, 8 and 12 wide.
const maxWidth = 64

// problem is the input of the search: classes of equal requests, each with its choices.
type problem struct {
	p        gpu.Profiles
	present  []Present
	opts     Options
	classes  []class
	groups   []group
	rules    []rule // by profile
	maxMe    int    // the most instances with the attribute me
	pinned   uint64 // bits of present: must not be destroyed
	keepable uint64 // bits of present: may be kept without a request
	inUse    uint64
	masks    []uint64 // memory slices of each of present
	profile  []int    // index into p.GI of each of present, -1 when the device does not list it
	work     *work
}

// class is a set of equal requests.
type class struct {
	request  Request
	requests []int // indexes of the requests
	profiles []int // profiles that satisfy one, as indexes into p.GI
	choices  []choice
	placed   bool // its placement exists, or none is fixed
	// sub is the slices of a compute instance that shares its GPU instance with others; 0: the request is for a GPU instance.
	// With sub the choices are those of the group.
	sub uint32
}

// choice is one possible placement of one request.
type choice struct {
	profile   int
	place     gpu.Placement
	mask      uint64
	conflicts uint64 // bits of present: would be destroyed
	existing  int    // index into present of the instance that already is this; -1: none
	completes bool   // existing, but compute instances are missing
}

// rule is what a profile's attributes require of the other instances.
type rule struct{ me, all, none bool }

// tally counts instances for the rules and the profiles' maxima.
type tally struct {
	of           []uint32 // instances by profile
	me, all, any int      // with me; with me.all; with neither me.all nor -me
}

// job is n equal instances to place: those of a class, or GPU instances with several compute instances.
type job struct {
	request Request
	choices []choice
	n       int
	class   int // -1: it is of group
	group   int
}

// solution is one placement of all requests with its cost.
type solution struct {
	jobs    []job
	chosen  []int // index of the choice for each instance, in the order of the jobs
	jobOf   []int // index of the job for each instance
	matched uint64
	extra   uint64
	cost    cost
}

// cost is compared field by field; less is better.
type cost struct {
	disturbed, destroyed int
	created              uint64 // bytes
	completed            int
	// closed counts the profiles that have no free placement left with the solution, taken counts such placements.
	closed, taken int
}

func newProblem(p gpu.Profiles, present []Present, requests []Request, o Options) (*problem, error) {
	if p.Width > maxWidth || len(present) > maxWidth {
		return nil, fmt.Errorf(
			"cannot plan MIG instances: the grid is %d wide with %d instances, at most %d are supported", p.Width, len(present),
			maxWidth,
		)
	}
	pr := &problem{p: p, present: present, opts: o, maxMe: 1, work: newWork(searchSteps, o)}
	for _, q := range p.GI {
		r := rule{
			me:   slices.Contains(q.Attributes, "me"),
			all:  slices.Contains(q.Attributes, "me.all"),
			none: slices.Contains(q.Attributes, "-me"),
		}
		pr.rules = append(pr.rules, r)
		if r.me {
			pr.maxMe = max(pr.maxMe, int(q.Max))
		}
	}
	for i, b := range present {
		pr.masks = append(pr.masks, maskOf(b.Placement))
		pr.profile = append(pr.profile, slices.IndexFunc(p.GI, func(q gpu.Profile) bool { return q.ID == b.ProfileID }))
		foreign := b.Foreign && !o.TakeForeign
		if b.Pinned || (b.InUse || foreign) && !o.Force {
			pr.pinned |= 1 << i
		}
		if b.Keepable || foreign {
			pr.keepable |= 1 << i
		}
		if b.InUse {
			pr.inUse |= 1 << i
		}
	}
	classOf := map[requestKey]int{} // A spec may have a hundred thousand requests, most of them equal.
	for i, req := range requests {
		key, simple := req.key()
		if at, ok := classOf[key]; ok && simple {
			pr.classes[at].requests = append(pr.classes[at].requests, i)
			continue
		}
		profiles, sub, err := matches(p, req)
		if err != nil {
			return nil, err
		}
		c := class{request: req, sub: sub, profiles: profiles, placed: pr.placeable(req, profiles)}
		if sub == 0 {
			c.choices = pr.choicesFor(req, profiles)
		}
		at := slices.IndexFunc(pr.classes, c.equivalent)
		if at < 0 {
			at = len(pr.classes)
			pr.classes = append(pr.classes, c)
		}
		pr.classes[at].requests = append(pr.classes[at].requests, i)
		if simple {
			classOf[key] = at
		}
	}
	pr.group()
	return pr, nil
}

// requestKey is the same for equal requests.
type requestKey struct {
	name, attributes string
	slices           uint32
	memory           uint64
	smallest         bool
	fixed            bool
	at               gpu.Placement
}

// key returns the key of a request. ok is false when it lists compute instances.
func (req Request) key() (_ requestKey, ok bool) {
	k := requestKey{
		name:       req.Name,
		attributes: strings.Join(req.Attributes, "\x00"),
		slices:     req.Slices,
		memory:     req.Memory,
		smallest:   req.Smallest,
	}
	if req.At != nil {
		k.fixed, k.at = true, *req.At
	}
	return k, len(req.Compute) == 0
}

// placeable reports whether some profiles have the placement of a request, or it has none.
func (pr *problem) placeable(req Request, profiles []int) bool {
	return slices.ContainsFunc(profiles, func(q int) bool { return slices.ContainsFunc(pr.p.GI[q].Placements, req.mayBeAt) })
}

// equivalent reports whether the requests of two classes are interchangeable.
func (c class) equivalent(d class) bool {
	if c.sub != 0 || d.sub != 0 {
		return c.sub == d.sub && slices.Equal(c.profiles, d.profiles) && c.placed == d.placed &&
			(!c.placed || c.request.samePlace(d.request))
	}
	return slices.Equal(c.choices, d.choices) && sameCompute(c.request.Compute, d.request.Compute)
}

// choicesFor lists the possible placements of a request that destroy no pinned instance.
func (pr *problem) choicesFor(req Request, profiles []int) []choice {
	var out []choice
	for _, q := range profiles {
		places := slices.SortedFunc(slices.Values(pr.p.GI[q].Placements), order)
		for _, place := range places {
			if !req.mayBeAt(place) {
				continue
			}
			c := choice{profile: q, place: place, mask: maskOf(place), existing: -1}
			for i, b := range pr.present {
				if pr.masks[i]&c.mask == 0 {
					continue
				}
				if pr.profile[i] == q && b.Placement == place && !(pr.opts.additional && b.InUse) {
					ok, missing := computeFits(b.Compute, req.Compute, pr.p.GI[q].Slices)
					if ok && (len(missing) == 0 || fitsInside(b.Compute, missing, pr.p.GI[q].Slices)) {
						c.existing, c.completes = i, len(missing) != 0
						continue
					}
				}
				c.conflicts |= 1 << i
			}
			if c.conflicts&pr.pinned == 0 {
				out = append(out, c)
			}
		}
	}
	return out
}

// counts is the number of requests of each class.
func (pr *problem) counts() []int {
	out := make([]int, len(pr.classes))
	for i := range pr.classes {
		out[i] = len(pr.classes[i].requests)
	}
	return out
}

// search is the state of one search.
type search struct {
	*problem
	jobs      []job
	mayKeep   uint64 // bits of present: may be kept without a request
	best      solution
	found     bool
	chosen    []int
	jobOf     []int
	remaining int
	tally     tally
}

// solve finds the cheapest solution for the given number of requests of each class.
func (pr *problem) solve(counts []int) (solution, bool) {
	return pr.newSearch(pr.keepable).searchAll(counts)
}

// fits reports whether there is a solution at all. Pinned instances without a request are kept.
func (pr *problem) fits(counts []int) bool {
	total := 0
	for _, n := range counts {
		total += n
	}
	best := pr.largestPart(counts, pr.keepable|pr.pinned)
	return best != nil && best.n == total
}

// solveKeepingPinned is solve where pinned instances without a request are kept.
func (pr *problem) solveKeepingPinned(counts []int) (solution, bool) {
	return pr.newSearch(pr.keepable | pr.pinned).searchAll(counts)
}

func (pr *problem) newSearch(mayKeep uint64) *search {
	return &search{problem: pr, mayKeep: mayKeep, tally: tally{of: make([]uint32, len(pr.p.GI))}}
}

// searchAll searches every arrangement of the requests.
func (s *search) searchAll(counts []int) (solution, bool) {
	for jobs := range s.arrangements(counts) {
		s.searchArrangement(jobs)
		if s.work.over() {
			break
		}
	}
	return s.best, s.found && !s.work.over()
}

// searchArrangement searches one arrangement and replaces the best solution when it finds a better one.
func (s *search) searchArrangement(jobs []job) {
	s.remaining = 0
	for _, j := range jobs {
		if j.n > len(j.choices) {
			return
		}
		s.remaining += j.n
	}
	slices.SortStableFunc(jobs, job.compare)
	s.jobs = jobs
	s.walk(0, 0, 0, 0, 0, 0, 0)
}

// compare sorts the most constrained job first, because that prunes most. Equally constrained jobs are sorted by their
// content, so that the order of the requests does not matter.
func (j job) compare(k job) int {
	if d := len(j.choices) - len(k.choices); d != 0 || len(j.choices) == 0 {
		return d
	}
	if d := j.choices[0].profile - k.choices[0].profile; d != 0 {
		return d
	}
	if d := order(j.choices[0].place, k.choices[0].place); d != 0 {
		return d
	}
	return slices.CompareFunc(k.request.Compute, j.request.Compute, func(a, b gpu.NewCompute) int { return int(a.Slices) - int(b.Slices) })
}

// walk places the rest of job ji, starting with choice from. Equal requests take choices in rising order, so that no
// combination is tried twice. mask is the used slices, conflicts the present instances that are destroyed, matched those
// that are kept for a request.
func (s *search) walk(ji, done, from int, mask, conflicts, matched, created uint64) {
	if !s.work.step() {
		return
	}
	for ji < len(s.jobs) && done == s.jobs[ji].n {
		ji, done, from = ji+1, 0, 0
	}
	if s.found && s.cannotImprove(conflicts, matched) {
		return
	}
	if ji == len(s.jobs) {
		s.evaluate(mask, matched, created)
		return
	}
	choices := s.jobs[ji].choices
	for i := from; i <= len(choices)-(s.jobs[ji].n-done); i++ {
		c := &choices[i]
		if c.mask&mask != 0 || !s.add(&s.tally, c.profile) {
			continue
		}
		s.chosen, s.jobOf = append(s.chosen, i), append(s.jobOf, ji)
		s.remaining--
		m, b := matched, created
		if c.existing >= 0 {
			m |= 1 << c.existing
		} else {
			b += s.p.GI[c.profile].Memory
		}
		s.walk(ji, done+1, i+1, mask|c.mask, conflicts|c.conflicts, m, b)
		s.remaining++
		s.chosen, s.jobOf = s.chosen[:len(s.chosen)-1], s.jobOf[:len(s.jobOf)-1]
		s.drop(&s.tally, c.profile)
	}
}

// cannotImprove reports that no solution below can be better: the instances to destroy already cost more.
func (s *search) cannotImprove(conflicts, matched uint64) bool {
	all := uint64(1)<<len(s.present) - 1
	destroyed := max(bits.OnesCount64(conflicts), bits.OnesCount64(all&^s.mayKeep&^matched)-s.remaining)
	disturbed := max(bits.OnesCount64(conflicts&s.inUse), bits.OnesCount64(all&s.inUse&^s.mayKeep&^matched)-s.remaining)
	if disturbed != s.best.cost.disturbed {
		return disturbed > s.best.cost.disturbed
	}
	return destroyed > s.best.cost.destroyed
}

// evaluate computes the cost of one complete placement and keeps the best.
func (s *search) evaluate(mask, matched, created uint64) {
	t := tally{of: slices.Clone(s.tally.of), me: s.tally.me, all: s.tally.all, any: s.tally.any}
	extra := s.keepExtras(&t, mask, matched)
	removed := (uint64(1)<<len(s.present) - 1) &^ matched &^ extra
	if removed&s.pinned != 0 {
		return
	}
	c := cost{disturbed: bits.OnesCount64(removed & s.inUse), destroyed: bits.OnesCount64(removed), created: created}
	for i, ch := range s.chosen {
		if s.jobs[s.jobOf[i]].choices[ch].completes {
			c.completed++
		}
	}
	if s.found && c.compare(s.best.cost, false) > 0 {
		return
	}
	for i := range s.present {
		if extra&(1<<i) != 0 {
			mask |= s.masks[i]
		}
	}
	c.closed, c.taken = s.countClosed(&t, mask)
	if s.found {
		if d := c.compare(s.best.cost, true); d > 0 || d == 0 && !s.placedLower(s.chosen) {
			return
		}
	}
	s.found = true
	s.best = solution{jobs: s.jobs, chosen: slices.Clone(s.chosen), jobOf: slices.Clone(s.jobOf), matched: matched, extra: extra, cost: c}
}

// keepExtras keeps instances that have no request and may be kept: pinned ones first, then those in use. The limits are nested (a profile's
// maximum within that of its attribute), so keeping them one by one keeps the most.
func (s *search) keepExtras(t *tally, mask, matched uint64) uint64 {
	var out uint64
	for _, only := range [3]uint64{s.pinned, s.inUse &^ s.pinned, ^(s.pinned | s.inUse)} {
		for i := range s.present {
			if s.mayKeep&only&(1<<i) == 0 || matched&(1<<i) != 0 || s.masks[i]&mask != 0 {
				continue
			}
			if s.profile[i] < 0 || s.add(t, s.profile[i]) {
				out |= 1 << i
			}
		}
	}
	return out
}

// countClosed counts the profiles without a free placement, and the placements that are not free.
func (s *search) countClosed(t *tally, mask uint64) (closed, taken int) {
	for i := range s.p.GI {
		if !s.add(t, i) {
			closed++
			taken += len(s.p.GI[i].Placements)
			continue
		}
		s.drop(t, i)
		open := 0
		for _, place := range s.p.GI[i].Placements {
			if maskOf(place)&mask == 0 {
				open++
			}
		}
		if open == 0 {
			closed++
		}
		taken += len(s.p.GI[i].Placements) - open
	}
	return closed, taken
}

// placedLower is the last tie-break: it reports whether a solution has lower placements than the best, job by job. Of two
// arrangements the first is kept.
func (s *search) placedLower(chosen []int) bool {
	if len(chosen) == 0 || &s.jobs[0] != &s.best.jobs[0] {
		return false
	}
	for i, ch := range chosen {
		a, b := s.jobs[s.jobOf[i]].choices[ch], s.best.jobs[s.best.jobOf[i]].choices[s.best.chosen[i]]
		if d := order(a.place, b.place); d != 0 {
			return d < 0
		}
	}
	return false
}

// add counts one more instance of a profile, unless the profile's maximum is reached or an attribute forbids it together
// with the others.
func (pr *problem) add(t *tally, profile int) bool {
	q, r := &pr.p.GI[profile], pr.rules[profile]
	if q.Max != 0 && t.of[profile] >= q.Max {
		return false
	}
	n := *t
	n.count(r, 1)
	if n.me > pr.maxMe && r.me || n.all > 0 && n.any > 0 || n.all > 1 {
		return false
	}
	t.count(r, 1)
	t.of[profile]++
	return true
}

// drop reverses add.
func (pr *problem) drop(t *tally, profile int) {
	t.count(pr.rules[profile], -1)
	t.of[profile]--
}

// count applies one instance to the attribute counters.
func (t *tally) count(r rule, by int) {
	if r.me {
		t.me += by
	}
	switch {
	case r.all:
		t.all += by
	case !r.none:
		t.any += by
	}
}

// compare compares two costs: negative when c is cheaper. Without open the last two fields are ignored.
func (c cost) compare(d cost, open bool) int {
	switch {
	case c.disturbed != d.disturbed:
		return c.disturbed - d.disturbed
	case c.destroyed != d.destroyed:
		return c.destroyed - d.destroyed
	case c.created != d.created:
		if c.created < d.created {
			return -1
		}
		return 1
	case c.completed != d.completed:
		return c.completed - d.completed
	case !open:
		return 0
	case c.closed != d.closed:
		return c.closed - d.closed
	}
	return c.taken - d.taken
}

// maskOf is the memory slices of a placement as bits.
func maskOf(p gpu.Placement) uint64 { return (uint64(1)<<p.Size - 1) << p.Start }

// sameCompute compares two requests for compute instances.
func sameCompute(a, b []gpu.NewCompute) bool {
	return slices.EqualFunc(a, b, func(x, y gpu.NewCompute) bool {
		return x.Slices == y.Slices && (x.Placement == nil) == (y.Placement == nil) && (x.Placement == nil || *x.Placement == *y.Placement)
	})
}
