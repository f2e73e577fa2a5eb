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
	InUse    bool           // by a lease or a process: pinned without Force
	Foreign  bool           // not managed by gpushare: never destroyed without TakeForeign or Force
	Pinned   bool           // no authority may destroy it
	Keepable bool           // it may be kept without a request, and is destroyed when its slices are needed
	InUseBy  []step.Subject // whom destroying it would disturb
}

// Placed is one instance of a layout: its profile and its placement.
type Placed struct {
	Name      string           `json:"name"`
	ProfileID uint32           `json:"profile_id"`
	Placement gpu.Placement    `json:"placement"`
	Slices    uint32           `json:"slices"`            // compute slices of the instance; 0 when the device does not list the profile
	Compute   []gpu.NewCompute `json:"compute,omitempty"` // empty: one that takes all slices
}

// String returns the profile and the start: "3g.20gb at 4", "3g.20gb of 2c+1c at 0".
func (p Placed) String() string {
	s := p.Name
	if len(p.Compute) != 0 {
		s += " of " + computeText(p.Compute)
	}
	return fmt.Sprintf("%s at %d", s, p.Placement.Start)
}

// Options is the authority that a plan may use. The zero value disturbs no process.
type Options struct {
	// Force is --force by an administrator: instances in use and foreign ones may be destroyed, as few as possible, and those that
	// no undo could create again.
	Force       bool
	TakeForeign bool // idle foreign instances may be destroyed
	AllowReset  bool // --allow-reset by an administrator
	// Done: when it is closed, the search ends with an error that is context.Canceled. nil: never.
	Done <-chan struct{}

	additional bool // the requests are additional: an instance in use satisfies none of them
}

// Result is a plan for one GPU. It is empty when nothing changes.
type Result struct {
	Mode     *Mode     // the mode change of the plan; nil: none
	Keep     []Placed  // kept, because it is requested
	Extra    []Placed  // kept without a request: keepable or foreign, and not in the way
	Complete []Placed  // kept, and its missing compute instances are created
	Destroy  []Present // sorted by placement
	Create   []Placed  // largest first
	// Disturbed is the part of Destroy that is in use. Empty without Force.
	Disturbed []Present
	// Layout is the placement of each request: Layout[i] is for request i. Requests for compute instances that share a GPU
	// instance get the same one, which lists all of them.
	Layout []Placed
	// Assumed: the profiles are not those that the driver reports, because it reports none while MIG mode is off.
	Assumed bool
	// Imported: the completed instances are imported by an administrator. The caller of Plan sets it.
	Imported bool
	recorded bool // Create is of a record of this GPU
	// profiles are for the names of Destroy.
	profiles gpu.Profiles
}

// Plan finds the best way from the present instances to the requested ones by exact search: the fewest instances in use
// destroyed (none without Force), then the fewest destroyed, then the least memory in new instances, then the most
// profiles that can still be placed, then the lowest placements. The same input always gives the same plan.
//
// Requests for compute instances (1c.3g.20gb) share GPU instances at the lowest cost: existing GPU instances that have them
// are used first, then as few new ones as possible.
//
// It returns *NoProfile when the device does not have a requested profile, and *Infeasible when the requests do not fit on
// the device, or not without destroying what must be kept.
func Plan(p gpu.Profiles, present []Present, requests []Request, o Options) (Result, error) {
	pr, err := newProblem(p, present, requests, o)
	if err != nil {
		return Result{}, err
	}
	best, ok := pr.solve(pr.counts())
	switch {
	case pr.work.over():
		return Result{}, pr.work.err()
	case !ok:
		return Result{}, pr.explain(requests)
	}
	return pr.result(best, len(requests)), nil
}

// result converts a solution to a plan.
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
	largestInstancesFirst(r.Create)
	return r
}

// largestInstancesFirst sorts instances so that an interrupted change has created those that are hardest to place.
func largestInstancesFirst(create []Placed) {
	slices.SortFunc(create, func(a, b Placed) int {
		if a.Placement.Size != b.Placement.Size {
			return int(b.Placement.Size) - int(a.Placement.Size)
		}
		return order(a.Placement, b.Placement)
	})
}

// largestFirst sorts compute instances so that all of them fit when the driver chooses their placements.
func largestFirst(list []gpu.NewCompute) []gpu.NewCompute {
	return slices.SortedStableFunc(slices.Values(list), func(a, b gpu.NewCompute) int { return int(b.Slices) - int(a.Slices) })
}

// order compares placements by start, then by size.
func order(a, b gpu.Placement) int {
	if a.Start != b.Start {
		return int(a.Start) - int(b.Start)
	}
	return int(a.Size) - int(b.Size)
}

// placedOf describes an instance with the profile names of this device.
func placedOf(p gpu.Profiles, in gpu.Instance) Placed {
	out := Placed{Name: fmt.Sprintf("profile %d", in.ProfileID), ProfileID: in.ProfileID, Placement: in.Placement}
	if i := slices.IndexFunc(p.GI, func(q gpu.Profile) bool { return q.ID == in.ProfileID }); i >= 0 {
		out.Name, out.Slices = p.GI[i].Name, p.GI[i].Slices
	}
	if len(in.Compute) != 0 && !isFullCompute(in.Compute, out.Slices) {
		for _, c := range in.Compute {
			out.Compute = append(out.Compute, c.Again())
		}
	}
	return out
}

// isFullCompute reports whether the compute instances are the usual single one with all slices. A count of 0 is of a record
// of an older version, or of a profile that the driver does not list.
func isFullCompute(have []gpu.ComputeInstance, slices uint32) bool {
	return len(have) == 1 && (have[0].SliceCount() == 0 || have[0].SliceCount() >= slices)
}

// computeFits compares an instance's compute instances with the requested ones: ok when all of its own are requested, and
// missing are those that are missing.
func computeFits(have []gpu.ComputeInstance, requests []gpu.NewCompute, slices uint32) (ok bool, missing []gpu.NewCompute) {
	if len(requests) == 0 || len(requests) == 1 && requests[0].Placement == nil && requests[0].Slices >= slices {
		if len(have) == 0 {
			return true, []gpu.NewCompute{{Slices: slices}}
		}
		return isFullCompute(have, slices), nil
	}
	missing = append(missing, requests...)
	for _, h := range have {
		found := -1
		for i, w := range missing {
			// A request with a placement is matched before one without.
			if w.Is(h) && (w.Exact() || found < 0) {
				found = i
			}
		}
		if found < 0 {
			return false, nil
		}
		missing = append(missing[:found], missing[found+1:]...)
	}
	return true, missing
}

// After is the layout when the plan is done, sorted by placement.
func (r Result) After() Layout {
	out := slices.Concat(Layout(r.Keep), Layout(r.Extra), Layout(r.Complete), Layout(r.Create))
	slices.SortFunc(out, func(a, b Placed) int { return order(a.Placement, b.Placement) })
	return out
}
