package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/text"
)

// Request requests one instance, by Name or by its properties. The zero value matches nothing.
type Request struct {
	// Name is a profile name. Boards and drivers name one profile differently (1g.23gb or 1g.24gb), so a profile with the
	// same slices and attributes and a memory label within 5 % matches too.
	Name string
	// Slices, Memory and Attributes are used without a Name: exactly these compute slices, at least these bytes (0: any),
	// and exactly these attributes, because an instance with an attribute takes it from the others.
	Slices     uint32
	Memory     uint64
	Attributes []string
	// Smallest: only the smallest profile with these properties matches, so that the same request has the same instance whatever
	// exists already.
	Smallest bool
	// At fixes the placement; nil leaves it to the planner. Size 0: it fixes only the start.
	At *gpu.Placement
	// Compute are the compute instances; empty: one with all slices.
	Compute []gpu.NewCompute
}

// Requests returns a request for each name of a layout in a spec.
func Requests(names ...string) []Request {
	out := make([]Request, len(names))
	for i, n := range names {
		out[i].Name = n
	}
	return out
}

// String describes the request in messages.
func (req Request) String() string {
	s := req.Name
	if s == "" {
		s = fmt.Sprintf("%d slices", req.Slices)
		if req.Slices == 1 {
			s = "1 slice"
		}
		if req.Memory != 0 {
			s += " with at least " + text.Bytes(req.Memory)
		}
		if len(req.Attributes) != 0 {
			s += " and " + strings.Join(req.Attributes, ", ")
		}
	}
	if len(req.Compute) != 0 {
		s += " of " + computeText(req.Compute)
	}
	if req.At != nil {
		s += fmt.Sprintf(" at %d", req.At.Start)
	}
	return s
}

// computeText lists compute instances: "1c+1c+1c".
func computeText(list []gpu.NewCompute) string {
	var b strings.Builder
	for i, c := range list {
		if i > 0 {
			b.WriteByte('+')
		}
		fmt.Fprintf(&b, "%dc", c.Slices)
	}
	return b.String()
}

// mayBeAt reports whether a placement is as requested.
func (req Request) mayBeAt(at gpu.Placement) bool {
	return req.At == nil || req.At.Start == at.Start && (req.At.Size == 0 || req.At.Size == at.Size)
}

// samePlace reports whether two requests fix the same placement, or both none.
func (req Request) samePlace(v Request) bool {
	return (req.At == nil) == (v.At == nil) && (req.At == nil || *req.At == *v.At)
}

// NoProfile is the error for a request that no profile of the device matches.
type NoProfile struct {
	Request Request
	Why     string   // why the profile cannot be used; empty: the device does not have it
	Offers  []string // the names of what this device has, smallest first
}

// Error names the request, the reason and the profiles of the device.
func (e *NoProfile) Error() string {
	offers := "offers " + strings.Join(e.Offers, ", ")
	if len(e.Offers) == 0 {
		offers = "offers no MIG profile"
	}
	if e.Why != "" {
		return fmt.Sprintf("cannot use MIG profile %s: %s; this GPU %s", text.Short(e.Request.String(), maxShown), e.Why, offers)
	}
	return fmt.Sprintf("cannot use MIG profile %s: this GPU does not have it; it %s", text.Short(e.Request.String(), maxShown), offers)
}

// Match returns the profiles of this device that satisfy a request, the smallest memory first. For a compute instance that
// shares a GPU instance (1c.3g.20gb) these are the profiles of the GPU instance. Without a match it returns *NoProfile.
func Match(p gpu.Profiles, req Request) ([]gpu.Profile, error) {
	idx, _, err := matches(p, req)
	if err != nil {
		return nil, err
	}
	out := make([]gpu.Profile, len(idx))
	for i, j := range idx {
		out[i] = p.GI[j]
	}
	return out, nil
}

// Similar returns the corresponding request on a board with another memory size: the same slices and attributes, and the
// nearest memory label. ok is false when there is none.
func Similar(p gpu.Profiles, req Request) (_ Request, ok bool) {
	n, err := ParseProfile(req.Name)
	if err != nil {
		return Request{}, false
	}
	best, distance := Request{}, -1.0
	for i := range p.GI {
		m, err := ParseProfile(p.GI[i].Name)
		if err != nil || m.Slices != n.Slices || !slices.Equal(m.Attributes, n.Attributes) {
			continue
		}
		if d := float64(max(m.GB, n.GB, 1)) / float64(max(min(m.GB, n.GB), 1)); distance < 0 || d < distance {
			m.Compute = n.Compute
			best, distance = Request{Name: m.String()}, d
		}
	}
	if distance >= 0 {
		_, err = Match(p, best)
	}
	return best, distance >= 0 && err == nil
}

// tooSmall names the profile that has all that is requested except the memory, because names round memory up: 2g.10gb has
// less than 10 GiB. Empty when there is none.
func tooSmall(p gpu.Profiles, req Request) string {
	if req.Name != "" {
		return ""
	}
	req.Memory = 0
	var most *gpu.Profile
	idx, _, _ := matches(p, req) // no match is not an error here
	for _, i := range idx {
		if q := &p.GI[i]; most == nil || q.Memory > most.Memory {
			most = q
		}
	}
	if most == nil {
		return ""
	}
	return fmt.Sprintf("%s has %.2f GiB", most.Name, float64(most.Memory)/(1<<30))
}

// matches is Match with indexes into p.GI. sub is the slices of a compute instance that shares its GPU instance, else 0.
func matches(p gpu.Profiles, req Request) (out []int, sub uint32, err error) {
	add := func(ok func(*gpu.Profile) bool) {
		for i := range p.GI {
			if len(p.GI[i].Placements) != 0 && ok(&p.GI[i]) {
				out = append(out, i)
			}
		}
	}
	if req.Name == "" {
		attrs := slices.Sorted(slices.Values(req.Attributes))
		add(func(q *gpu.Profile) bool {
			return req.Slices != 0 && q.Slices == req.Slices && q.Memory >= req.Memory && slices.Equal(q.Attributes, attrs)
		})
	} else {
		n, err := ParseProfile(req.Name)
		if err != nil {
			return nil, 0, &NoProfile{Request: req, Why: "it is not written like 3g.20gb or 1g.5gb+me", Offers: offers(p)}
		}
		if n.Compute != n.Slices {
			sub = n.Compute
		}
		n.Compute = 0
		full := n.String()
		add(func(q *gpu.Profile) bool { return q.Name == req.Name || q.Name == full })
		if len(out) == 0 {
			add(func(q *gpu.Profile) bool { return sameLabel(q, n) })
		}
	}
	if len(out) == 0 && req.Name == "" && req.Memory == 0 {
		return nil, 0, &NoProfile{Request: req, Offers: offers(p)}
	}
	if len(out) == 0 {
		return nil, 0, &NoProfile{Request: req, Why: tooSmall(p, req), Offers: offers(p)}
	}
	if sub != 0 {
		full := p.GI[out[0]].Name
		out = slices.DeleteFunc(out, func(i int) bool { return !divides(&p.GI[i], sub) })
		if len(out) == 0 {
			return nil, 0, &NoProfile{
				Request: req,
				Why:     fmt.Sprintf("%s has no compute instances of %d slices", full, sub),
				Offers:  offers(p),
			}
		}
	}
	slices.SortStableFunc(out, func(a, b int) int {
		if c := cmp.Compare(p.GI[a].Memory, p.GI[b].Memory); c != 0 {
			return c
		}
		return cmp.Compare(p.GI[a].ID, p.GI[b].ID)
	})
	out, err = onlySmallest(p, req, out)
	return out, sub, err
}

// onlySmallest returns the first of sorted profiles for a request of the smallest. It refuses several of the same memory: which one
// is meant is not known.
func onlySmallest(p gpu.Profiles, req Request, sorted []int) ([]int, error) {
	if !req.Smallest || req.Name != "" {
		return sorted, nil
	}
	e := &AmbiguousProfile{Request: req}
	for _, i := range sorted {
		if p.GI[i].Memory == p.GI[sorted[0]].Memory {
			e.Names = append(e.Names, p.GI[i].Name)
		}
	}
	if len(e.Names) > 1 {
		return nil, e
	}
	return sorted[:1], nil
}

// AmbiguousProfile is the error for a request by properties that several profiles of the device have, none smaller than the others.
type AmbiguousProfile struct {
	Request Request
	Names   []string
}

// Error names the profiles.
func (e *AmbiguousProfile) Error() string {
	return fmt.Sprintf(
		"cannot choose a MIG profile for %s: this GPU has %s, which are equally large; write the name of one of them",
		text.Short(e.Request.String(), maxShown), strings.Join(e.Names, " and "),
	)
}

// divides reports whether GPU instances of a profile can have compute instances of sub slices. The device reports this
// only while such a GPU instance exists. Until then the rule of all published listings is used: sub is at most half of the
// slices, rounded up.
func divides(q *gpu.Profile, sub uint32) bool {
	if len(q.Compute) != 0 {
		return slices.ContainsFunc(q.Compute, func(c gpu.ComputeProfile) bool { return c.Slices == sub })
	}
	return sub < q.Slices && 2*sub <= q.Slices+1
}

// sameLabel reports whether a profile is the one that another board or driver names n.
func sameLabel(q *gpu.Profile, n ProfileName) bool {
	m, err := ParseProfile(q.Name)
	return err == nil && m.Compute == 0 && m.Same(n)
}

// offers lists the names of a device's profiles, smallest first.
func offers(p gpu.Profiles) []string {
	list := slices.Clone(p.GI)
	slices.SortStableFunc(list, func(a, b gpu.Profile) int {
		if c := cmp.Compare(a.Slices, b.Slices); c != 0 {
			return c
		}
		if c := cmp.Compare(a.Memory, b.Memory); c != 0 {
			return c
		}
		return cmp.Compare(len(a.Attributes), len(b.Attributes))
	})
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].Name
	}
	return out
}
