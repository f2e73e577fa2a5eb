package mig

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// Present is one instance that is on the GPU now.
type Present struct {
	gpu.Instance
	InUse    bool           // a lease or a process holds it: pinned without Force
	Foreign  bool           // neither the spec nor a lease explains it: never destroyed without TakeForeign or Force
	Pinned   bool           // it must not go, whatever the authority
	Keepable bool           // it may stay although nobody wants it now (kept idle), and goes when its room is needed
	InUseBy  []step.Subject // who would be disturbed
}

// Placed is one instance of a layout: what and where.
type Placed struct {
	Name      string           `json:"name"`
	ProfileID uint32           `json:"profile_id"`
	Placement gpu.Placement    `json:"placement"`
	Slices    uint32           `json:"slices"`            // compute slices of the whole instance; 0 when the device does not list the profile
	Compute   []gpu.NewCompute `json:"compute,omitempty"` // empty: one that takes all slices
}

// String says what and where: "3g.20gb at 4", "3g.20gb of 2c+1c at 0".
func (p Placed) String() string {
	s := p.Name
	if len(p.Compute) != 0 {
		s += " of " + computeText(p.Compute)
	}
	return fmt.Sprintf("%s at %d", s, p.Placement.Start)
}

// Options is the authority that a plan may use. The zero value disturbs nobody.
type Options struct {
	Force       bool // an administrator said --force: in-use and foreign instances may go, as few as possible
	TakeForeign bool // idle foreign instances may go
	AllowReset  bool // an administrator said --allow-reset

	additional bool // a want is one more than those in use, which satisfy none
}

// Result is a plan for one GPU. It is empty when nothing would change.
type Result struct {
	Mode     *Mode     // a mode change that comes with it; nil: none
	Keep     []Placed  // stays, because it is wanted
	Extra    []Placed  // stays, although nobody wants it: spare or foreign, and not in the way
	Complete []Placed  // stays, but lacks compute instances: they are made
	Destroy  []Present // goes; sorted by placement
	Create   []Placed  // is made, largest first
	// Disturbed is the part of Destroy that is in use. Empty without Force.
	Disturbed []Present
	// Layout says where each want lands: Layout[i] is for want i. Compute instances that share a GPU instance land in the
	// same one, which lists them all.
	Layout []Placed
	// Imported says that an administrator declared ours what is completed. Whoever asked for the plan sets it.
	Imported bool
	// profiles words Destroy.
	profiles gpu.Profiles
}

// Plan finds the best way from the instances that are present to the wanted ones, by exact search: the fewest in use
// disturbed (none without Force), then the fewest destroyed, then the least memory made anew, then the free space that
// leaves the most profiles placeable, then the lowest placements. The same input always gives the same plan.
//
// Wants that are compute instances (1c.3g.20gb) share GPU instances as it costs least: they are put into what has them
// already, and else into as few as hold them.
//
// It returns *NoProfile when this device lacks what is wanted, and *Infeasible when it cannot hold all of it, or not
// without disturbing somebody.
func Plan(p gpu.Profiles, present []Present, requests []Request, o Options) (Result, error) {
	pr, err := newProblem(p, present, requests, o)
	if err != nil {
		return Result{}, err
	}
	best, ok := pr.solve(pr.counts())
	if !ok {
		return Result{}, pr.explain(requests)
	}
	return pr.result(best, len(requests)), nil
}

// result words a solution.
func (pr *problem) result(s solution, requests int) Result {
	r := Result{Layout: make([]Placed, requests), profiles: pr.p}
	next := make([]int, len(pr.classes))
	assign := func(class int, where Placed) {
		r.Layout[pr.classes[class].requests[next[class]]] = where
		next[class]++
	}
	for i, ch := range s.chosen {
		j := &s.jobs[s.jobOf[i]]
		c := &j.choices[ch]
		q := &pr.p.GI[c.profile]
		placed := Placed{Name: q.Name, ProfileID: q.ID, Placement: c.place, Slices: q.Slices, Compute: largestFirst(j.request.Compute)}
		if j.group < 0 {
			assign(j.class, placed)
		} else {
			members := pr.groups[j.group].members
			for _, w := range j.request.Compute {
				assign(members[slices.IndexFunc(members, func(m int) bool { return pr.classes[m].sub == w.Slices })], placed)
			}
		}
		switch {
		case c.existing < 0:
			r.Create = append(r.Create, placed)
		case c.completes:
			r.Complete = append(r.Complete, placed)
		default:
			r.Keep = append(r.Keep, placed)
		}
	}
	for i := range pr.present {
		b := pr.present[i]
		switch {
		case s.matched&(1<<i) != 0:
		case s.extra&(1<<i) != 0:
			r.Extra = append(r.Extra, placedOf(pr.p, b.Instance))
		default:
			r.Destroy = append(r.Destroy, b)
			if b.InUse {
				r.Disturbed = append(r.Disturbed, b)
			}
		}
	}
	byStart := func(a, b Placed) int { return order(a.Placement, b.Placement) }
	slices.SortFunc(r.Keep, byStart)
	slices.SortFunc(r.Extra, byStart)
	slices.SortFunc(r.Complete, byStart)
	slices.SortFunc(r.Destroy, func(a, b Present) int { return order(a.Placement, b.Placement) })
	slices.SortFunc(r.Disturbed, func(a, b Present) int { return order(a.Placement, b.Placement) })
	// Largest first, so that a change that is cut short has made the scarce ones.
	slices.SortFunc(r.Create, func(a, b Placed) int {
		if a.Placement.Size != b.Placement.Size {
			return int(b.Placement.Size) - int(a.Placement.Size)
		}
		return order(a.Placement, b.Placement)
	})
	return r
}

// largestFirst orders compute instances so that a driver that chooses the placements finds room for all of them.
func largestFirst(list []gpu.NewCompute) []gpu.NewCompute {
	return slices.SortedStableFunc(slices.Values(list), func(a, b gpu.NewCompute) int { return int(b.Slices) - int(a.Slices) })
}

// order sorts placements from the left.
func order(a, b gpu.Placement) int {
	if a.Start != b.Start {
		return int(a.Start) - int(b.Start)
	}
	return int(a.Size) - int(b.Size)
}

// placedOf says what an instance is, by the names of this device.
func placedOf(p gpu.Profiles, in gpu.Instance) Placed {
	out := Placed{Name: fmt.Sprintf("profile %d", in.ProfileID), ProfileID: in.ProfileID, Placement: in.Placement}
	if i := slices.IndexFunc(p.GI, func(q gpu.Profile) bool { return q.ID == in.ProfileID }); i >= 0 {
		out.Name, out.Slices = p.GI[i].Name, p.GI[i].Slices
	}
	if len(in.Compute) != 0 && !isFullCompute(in.Compute, out.Slices) {
		for _, c := range in.Compute {
			out.Compute = append(out.Compute, gpu.NewCompute{Slices: c.Placement.Size, Placement: &c.Placement})
		}
	}
	return out
}

// isFullCompute tells whether the compute instances are the usual one that takes all slices. Size 0 is a driver that
// does not tell.
func isFullCompute(have []gpu.ComputeInstance, slices uint32) bool {
	return len(have) == 1 && (have[0].Placement.Size == 0 || have[0].Placement.Size >= slices)
}

// computeFits compares an instance's compute instances with the wanted ones: whether it has nothing that is not wanted,
// and what it lacks.
func computeFits(have []gpu.ComputeInstance, requests []gpu.NewCompute, slices uint32) (ok bool, lacks []gpu.NewCompute) {
	if len(requests) == 0 || len(requests) == 1 && requests[0].Placement == nil && requests[0].Slices >= slices {
		if len(have) == 0 {
			return true, []gpu.NewCompute{{Slices: slices}}
		}
		return isFullCompute(have, slices), nil
	}
	lacks = append(lacks, requests...)
	for _, h := range have {
		found := -1
		for i, w := range lacks {
			// One that fixes the placement goes before one that leaves it open.
			if w.Slices == h.Placement.Size && (w.Placement != nil && *w.Placement == h.Placement || w.Placement == nil && found < 0) {
				found = i
			}
		}
		if found < 0 {
			return false, nil
		}
		lacks = append(lacks[:found], lacks[found+1:]...)
	}
	return true, lacks
}

// After is what is on the GPU when the plan is done, from the left.
func (r Result) After() Layout {
	out := slices.Concat(Layout(r.Keep), Layout(r.Extra), Layout(r.Complete), Layout(r.Create))
	slices.SortFunc(out, func(a, b Placed) int { return order(a.Placement, b.Placement) })
	return out
}
