package mig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// The functions below parse instances as users type them: "3g.20gb@4!" is a 3g.20gb that starts at 4 and is in use, and
// "1c.3g.20gb@4" is a compute instance with one slice in the 3g.20gb that starts at 4.

// ParsePresent parses one instance and adds it to the instances of a GPU. It refuses one that the GPU does not support.
func ParsePresent(p gpu.Profiles, list []Present, item string) ([]Present, error) {
	text, used := strings.CutSuffix(item, "!")
	name, at, ok := strings.Cut(text, "@")
	if !ok {
		return nil, fmt.Errorf("cannot read %q: the first memory slice is missing, as in 3g.20gb@4", item)
	}
	start, err := startOf(at, item)
	if err != nil {
		return nil, err
	}
	return AddPresent(p, list, name, start, used)
}

// AddPresent adds one instance, or one compute instance of an instance, to the instances of a GPU.
func AddPresent(p gpu.Profiles, list []Present, name string, start uint32, inUse bool) ([]Present, error) {
	item := fmt.Sprintf("%s@%d", name, start)
	fit, sub, err := matches(p, Request{Name: name})
	if err != nil {
		return nil, err
	}
	q := &p.GI[fit[0]]
	i := slices.IndexFunc(q.Placements, func(at gpu.Placement) bool { return at.Start == start })
	if i < 0 {
		return nil, fmt.Errorf("cannot add %s: %s starts at %s on this GPU", item, q.Name, startsText(q))
	}
	at := q.Placements[i]
	same := slices.IndexFunc(list, func(b Present) bool { return b.Placement == at && b.ProfileID == q.ID })
	if sub != 0 && same >= 0 && !isFullCompute(list[same].Compute, q.Slices) {
		b := &list[same]
		b.InUse = b.InUse || inUse
		inside, ok := arrangedInside(b.Compute, sub, q.Slices)
		if !ok {
			return nil, fmt.Errorf(
				"cannot add %s: the %s there has no free slices for another compute instance of %d slices", item, q.Name, sub,
			)
		}
		b.Compute = inside
		return list, nil
	}
	for _, b := range list {
		if b.Placement.Overlaps(at) {
			return nil, fmt.Errorf("cannot add %s: it overlaps %s", item, placedOf(p, b.Instance))
		}
	}
	b := Present{Instance: gpu.Instance{ProfileID: q.ID, Placement: at}, InUse: inUse}
	if sub == 0 {
		sub = q.Slices
	}
	b.Compute = []gpu.ComputeInstance{{Placement: gpu.Placement{Size: sub}}}
	// The rules that are not about slices: the maximum of a profile, and which attributes exclude each other.
	pr, err := newProblem(p, append(slices.Clip(list), b), nil, Options{})
	if err != nil {
		return nil, err
	}
	t := tally{of: make([]uint32, len(p.GI))}
	for _, at := range pr.profile {
		if !pr.add(&t, at) {
			return nil, fmt.Errorf(
				"cannot add %s: this GPU does not support it together with the others (at most %d of it, one +me, and +me.all only with -me)",
				item,
				pr.maxInstances(q),
			)
		}
	}
	return append(list, b), nil
}

// arrangedInside returns the compute instances of an instance with one more, at placements that the driver has for all of
// them together. A list of instances has no placements of compute instances.
func arrangedInside(have []gpu.ComputeInstance, sub, width uint32) ([]gpu.ComputeInstance, bool) {
	want := []gpu.NewCompute{{Slices: sub}}
	for _, c := range have {
		want = append(want, gpu.NewCompute{Slices: c.Placement.Size})
	}
	var out []gpu.ComputeInstance
	for i, w := range gpu.ComputeOrder(want) {
		at := gpu.Placement{Size: w.Slices}
		for slices.ContainsFunc(out, func(c gpu.ComputeInstance) bool { return c.Placement.Overlaps(at) }) {
			at.Start += gpu.ComputeAlign(w.Slices)
		}
		if at.Start+at.Size > width {
			return nil, false
		}
		out = append(out, gpu.ComputeInstance{ID: uint32(i), Placement: at})
	}
	return out, true
}

// ParseRequest parses a request: "3g.20gb", with a placement "3g.20gb@4", or several "1g.5gb*3".
func ParseRequest(item string) ([]Request, error) {
	text, times, many := strings.Cut(item, "*")
	n := 1
	if many {
		var err error
		if n, err = strconv.Atoi(times); err != nil || n < 1 || n > maxWidth {
			return nil, fmt.Errorf("cannot read %q: the number after * must be 1 to %d, as in 1g.5gb*3", item, maxWidth)
		}
	}
	name, at, fixed := strings.Cut(text, "@")
	if _, err := ParseProfile(name); err != nil {
		return nil, err
	}
	req := Request{Name: name}
	if fixed {
		start, err := startOf(at, item)
		if err != nil {
			return nil, err
		}
		req.At = &gpu.Placement{Start: start}
	}
	return slices.Repeat([]Request{req}, n), nil
}

func startOf(text, item string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("cannot read %q: the number after @ must be the first memory slice, as in 3g.20gb@4", item)
	}
	return uint32(n), nil
}

// startsText lists where a profile may start: "0, 2 or 4".
func startsText(q *gpu.Profile) string {
	var out []string
	for _, at := range q.Placements {
		out = append(out, strconv.FormatUint(uint64(at.Start), 10))
	}
	if len(out) == 1 {
		return out[0]
	}
	return strings.Join(out[:len(out)-1], ", ") + " or " + out[len(out)-1]
}

// Names returns a layout as names for ParseRequest and for a spec. A compute instance that shares its GPU instance has a
// name of its own. A GPU instance may be in the list once for each of its compute instances, as in Result.Layout.
func (l Layout) Names() []string {
	out := []string{}
	seen := map[gpu.Placement]bool{}
	for _, x := range l {
		if seen[x.Placement] {
			continue
		}
		seen[x.Placement] = true
		if len(x.Compute) == 0 {
			out = append(out, x.Name)
		}
		for _, c := range x.Compute {
			name := x.Name
			if c.Slices < x.Slices {
				name = fmt.Sprintf("%dc.%s", c.Slices, name)
			}
			out = append(out, name)
		}
	}
	return out
}
