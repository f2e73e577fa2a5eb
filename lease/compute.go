package lease

import (
	"cmp"
	"iter"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// ComputeView is one compute instance of a MIG instance that is split. It is a MIG device of its own, and CUDA uses one MIG
// device in a process (NVIDIA's MIG User Guide, section on CUDA_VISIBLE_DEVICES): a lease of several would use the first.
type ComputeView struct {
	UUID     gpu.UUID
	Name     string // "1c.3g.20gb"
	Slices   uint32 // of compute
	Occupied string // as of an instance
}

// part is what one lease gets of a MIG instance: one of its compute instances if it is split, else all of it.
type part struct {
	ProfileView
	device   gpu.UUID // of the compute instance; empty: all
	slices   uint32   // of compute
	occupied string
}

// parts returns the parts of an instance that leases get.
func (v *InstanceView) parts() iter.Seq[part] {
	return func(yield func(part) bool) {
		if len(v.Compute) == 0 {
			yield(part{ProfileView: v.ProfileView, slices: v.Slices, occupied: v.Occupied})
			return
		}
		for i := range v.Compute {
			c := &v.Compute[i]
			p := part{ProfileView: v.ProfileView, device: c.UUID, slices: c.Slices, occupied: cmp.Or(v.Occupied, c.Occupied)}
			if p.Split = c.Name; !yield(p) {
				return
			}
		}
	}
}

// occupied reports whether a process of no lease uses the instance, or a part of it.
func (v *InstanceView) occupied() bool {
	return v.Occupied != "" || slices.ContainsFunc(v.Compute, func(c ComputeView) bool { return c.Occupied != "" })
}

// satisfies reports whether a part of an instance satisfies a grant.
func (g *Grant) satisfies(in *InstanceView) bool {
	for p := range in.parts() {
		if g.matches(&p.ProfileView) {
			return true
		}
	}
	return false
}

// namesCompute reports whether a grant names a compute instance.
func (g *Grant) namesCompute() bool {
	n, err := gpu.ParseProfile(g.Spec.MIG)
	return err == nil && n.Compute != 0 && n.Compute != n.Slices
}

// created returns what is created for a grant on a GPU with instances on demand from one of its profiles; ok is false if that
// does not satisfy the grant.
func (g *Grant) created(d *GPUView, q *gpu.Profile) (name string, ok bool) {
	for i := range d.Profiles {
		if p := &d.Profiles[i]; p.Name == q.Name && g.matches(p) && (p.Split == "" || g.namesCompute()) {
			return p.slotName(), true
		}
	}
	return "", false
}

// slotName is the name of what is created: an instance, or one that is split into compute instances of this name.
func (p *ProfileView) slotName() string { return cmp.Or(p.Split, p.Name) }

// place is where a lease with the part is.
func (p *part) place(d *GPUView, in *InstanceView) *Place {
	at := in.Placement
	out := &Place{
		GPUs: []gpu.UUID{
			d.UUID,
		},
		Instance:   &at,
		Profile:    in.Name,
		Memory:     in.Memory,
		Devices:    slices.Clone(in.UUIDs),
		Generation: in.Generation,
	}
	if p.device != "" {
		out.Profile, out.Compute, out.Devices = p.Split, p.device, []gpu.UUID{p.device}
	}
	return out
}

// find returns the part of an instance with this compute instance; ok is false if the instance is not divided so any more.
func (v *InstanceView) find(device gpu.UUID) (found part, ok bool) {
	for p := range v.parts() {
		if p.device == device {
			return p, true
		}
	}
	return found, false
}

// fraction is how much of the compute of its instance the place has.
func (p *Place) fraction() float64 {
	if p.Compute == "" {
		return 1
	}
	return fractionOf(p.Profile)
}

// fractionOf is how much of the compute of its instance a profile has by its name: a third for 1c.3g.20gb.
func fractionOf(name string) float64 {
	if n, err := gpu.ParseProfile(name); err == nil && n.Compute != 0 {
		return float64(n.Compute) / float64(n.Slices)
	}
	return 1
}
