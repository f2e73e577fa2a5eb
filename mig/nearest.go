package mig

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// The largest part of the requests that fits is found from the first memory slice to the last: at each slice one instance
// starts, or none. The best rest from a slice on depends only on how many requests of each class are left there, and on how
// many instances of each profile may follow, and both matter only as far as the rest could use them. So equal rests are
// computed once. The answer is exact.

// option is one instance that may start at a slice, with the requests that it satisfies.
type option struct {
	choice
	takes  []take
	n      int    // requests
	memory uint64 // bytes, as memoryOf counts them
}

// take is n requests of a class.
type take struct{ class, n int }

// part is a part of the requests.
type part struct {
	n      int
	memory uint64
	counts []uint16 // by class
}

// compare compares what counts more: the most requests, then the most memory, then those of earlier classes. It is positive
// when a is the better one.
func (a *part) compare(b *part) int {
	switch {
	case a.n != b.n:
		return a.n - b.n
	case a.memory > b.memory:
		return 1
	case a.memory < b.memory:
		return -1
	}
	return slices.Compare(a.counts, b.counts)
}

// partial is the state of the search for the largest part.
type partial struct {
	*problem
	mayKeep uint64     // bits of present: may be kept without a request
	kept    [][]int    // by slice: the instances that start there and must not be destroyed, as indexes into present
	options [][]option // by slice: the instances that may start there
	// mostOf and mostIn are, from each slice on, the most requests of each class and the most instances of each profile, each
	// on its own. What is left beyond that makes no difference.
	mostOf, mostIn [][]int
	memo           map[string]*part
}

// largestPart finds the largest part of some requests of each class that can be placed: the most requests, then the most
// memory, then the earlier classes. nil: the instances that must be kept do not fit, or pr.work is over.
func (pr *problem) largestPart(counts []int, mayKeep uint64) *part {
	end := int(pr.p.Width) + 1
	s := &partial{problem: pr, mayKeep: mayKeep, kept: make([][]int, end), options: make([][]option, end), memo: map[string]*part{}}
	for i, b := range pr.present {
		if pr.pinned&(1<<i) != 0 {
			at := min(int(b.Placement.Start), end-1)
			s.kept[at] = append(s.kept[at], i)
		}
	}
	for i, c := range pr.classes {
		if c.sub == 0 && counts[i] > 0 {
			s.offer(c.choices, []take{{i, 1}})
		}
	}
	for i := range pr.groups {
		s.addShared(&pr.groups[i], counts)
	}
	s.bound()
	left := make([]int, len(counts))
	for i, n := range counts {
		left[i] = min(n, s.mostOf[0][i])
	}
	best := s.from(0, left, &tally{of: make([]uint32, len(pr.p.GI))})
	if pr.work.over() {
		return nil
	}
	return best
}

// offer adds an option for each of some choices.
func (s *partial) offer(choices []choice, takes []take) {
	o := option{takes: takes}
	for _, t := range takes {
		o.n += t.n
		o.memory += uint64(t.n) * s.memoryOf(&s.classes[t.class])
	}
	for _, c := range choices {
		if o.choice = c; int(c.place.Start) < len(s.options) {
			s.options[c.place.Start] = append(s.options[c.place.Start], o)
		}
	}
}

// addShared adds the options for GPU instances of a group: with every set of its compute instances that one can have.
func (s *partial) addShared(g *group, counts []int) {
	req := g.request
	var takes []take
	var fill func(from int, space uint32)
	fill = func(from int, space uint32) {
		if len(takes) > 0 && s.work.step() {
			s.offer(s.choicesFor(req, g.profiles), slices.Clone(takes))
		}
		for i := from; i < len(g.members) && !s.work.over(); i++ {
			m := g.members[i]
			sub, compute := s.classes[m].sub, req.Compute
			takes = append(takes, take{class: m})
			t := &takes[len(takes)-1]
			for t.n < counts[m] && uint32(t.n+1)*sub <= space {
				t.n++
				req.Compute = append(slices.Clip(req.Compute), gpu.NewCompute{Slices: sub})
				fill(i+1, space-uint32(t.n)*sub)
				t = &takes[len(takes)-1]
			}
			takes, req.Compute = takes[:len(takes)-1], compute
		}
	}
	fill(0, s.p.GI[g.profiles[0]].Slices)
}

// memoryOf is the memory of one request of a class, in bytes; for a compute instance its part of the GPU instance.
func (pr *problem) memoryOf(c *class) uint64 {
	if c.sub != 0 {
		q := &pr.p.GI[c.profiles[0]]
		return q.Memory * uint64(c.sub) / uint64(q.Slices)
	}
	if len(c.choices) == 0 {
		return 0
	}
	return pr.p.GI[c.choices[0].profile].Memory
}

// bound computes mostOf and mostIn from the last slice to the first.
func (s *partial) bound() {
	end := len(s.options)
	s.mostOf, s.mostIn = make([][]int, end+1), make([][]int, end+1)
	s.mostOf[end], s.mostIn[end] = make([]int, len(s.classes)), make([]int, len(s.p.GI))
	for at := end - 1; at >= 0; at-- {
		of, in := slices.Clone(s.mostOf[at+1]), slices.Clone(s.mostIn[at+1])
		for _, i := range s.kept[at] {
			if q := s.profile[i]; q >= 0 {
				in[q]++
			}
		}
		for i := range s.options[at] {
			o := &s.options[at][i]
			next := s.after(at, o)
			for _, t := range o.takes {
				of[t.class] = max(of[t.class], s.mostOf[next][t.class]+t.n)
			}
			in[o.profile] = max(in[o.profile], s.mostIn[next][o.profile]+1)
		}
		s.mostOf[at], s.mostIn[at] = of, in
	}
}

// after is the first slice after an instance.
func (s *partial) after(at int, o *option) int {
	return min(at+max(int(o.place.Size), 1), len(s.options))
}

// from returns the best part from a slice on, with the requests that are left and the instances before it.
func (s *partial) from(at int, left []int, t *tally) *part {
	if at == len(s.options) {
		return &part{counts: make([]uint16, len(s.classes))}
	}
	key := s.key(at, left, t)
	if p, ok := s.memo[key]; ok {
		return p
	}
	if !s.work.step() {
		return nil
	}
	best := s.without(at, left, t)
	sum := part{counts: make([]uint16, len(s.classes))}
	for i := range s.options[at] {
		o := &s.options[at][i]
		if !s.work.step() {
			return nil
		}
		if slices.ContainsFunc(o.takes, func(k take) bool { return left[k.class] < k.n }) || !s.add(t, o.profile) {
			continue
		}
		for _, k := range o.takes {
			left[k.class] -= k.n
		}
		rest := s.from(s.after(at, o), left, t)
		for _, k := range o.takes {
			left[k.class] += k.n
		}
		s.drop(t, o.profile)
		if rest == nil {
			continue
		}
		sum.n, sum.memory = rest.n+o.n, rest.memory+o.memory
		copy(sum.counts, rest.counts)
		for _, k := range o.takes {
			sum.counts[k.class] += uint16(k.n)
		}
		if best == nil || sum.compare(best) > 0 {
			best = &part{sum.n, sum.memory, slices.Clone(sum.counts)}
		}
	}
	s.memo[key] = best
	return best
}

// without is the best part when no instance for a request starts at a slice: those there that must not be destroyed are kept
// without a request. nil: they may not be, or do not fit.
func (s *partial) without(at int, left []int, t *tally) *part {
	if len(s.kept[at]) != 0 {
		t = &tally{of: slices.Clone(t.of), me: t.me, all: t.all, any: t.any}
	}
	for _, i := range s.kept[at] {
		if s.mayKeep&(1<<i) == 0 || s.profile[i] >= 0 && !s.add(t, s.profile[i]) {
			return nil
		}
	}
	return s.from(at+1, left, t)
}

// key is the same for two states whose best rest is the same.
func (s *partial) key(at int, left []int, t *tally) string {
	key := make([]byte, 0, 4+2*len(left)+len(t.of))
	flags := byte(0)
	if t.all > 0 {
		flags |= 1
	}
	if t.any > 0 {
		flags |= 2
	}
	key = append(key, byte(at), byte(t.me), flags)
	for i, n := range left {
		if s.mostOf[0][i] > 0 {
			n = min(n, s.mostOf[at][i])
			key = append(key, byte(n), byte(n>>8))
		}
	}
	for i, most := range s.mostIn[at] {
		if q := &s.p.GI[i]; q.Max != 0 {
			key = append(key, byte(min(int(q.Max)-int(t.of[i]), most)))
		}
	}
	return string(key)
}
