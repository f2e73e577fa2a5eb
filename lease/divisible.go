package lease

import (
	"cmp"
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// divisible is what grants may have a share of: a GPU, or a MIG instance that is shared through MPS.
type divisible struct {
	gpu      *GPUView
	instance *InstanceView // nil: the whole GPU
}

// divisibles returns what the grant may have a share of on a GPU that it may use.
func (g *Grant) divisibles(d *GPUView) []divisible {
	if !g.Spec.InInstance() {
		return []divisible{{gpu: d}}
	}
	var out []divisible
	for i := range d.Instances {
		if in := &d.Instances[i]; len(in.UUIDs) > 0 && g.Chosen.allows(in, "") && g.matches(&in.ProfileView) {
			out = append(out, divisible{d, in})
		}
	}
	return out
}

// place is where a lease with a share of it is.
func (v *divisible) place() *Place {
	if v.instance == nil {
		return &Place{GPUs: []gpu.UUID{v.gpu.UUID}, Devices: []gpu.UUID{v.gpu.UUID}}
	}
	at := v.instance.Placement
	return &Place{
		GPUs: []gpu.UUID{v.gpu.UUID}, Instance: &at, Profile: v.instance.Name, Devices: v.instance.UUIDs, Generation: v.instance.Generation,
	}
}

// unusable is why no lease may have a share of it now; empty if one may.
func (v *divisible) unusable(o *occupancy) string {
	if v.instance == nil {
		return ""
	}
	if h := o.at(v.gpu.UUID).instances[v.instance.Placement]; h.inUse() {
		return "a lease has all of it"
	}
	return cmp.Or(v.instance.Unusable, v.instance.Occupied)
}

// budget returns the memory that grants may have together, in bytes.
func (v *divisible) budget() uint64 {
	if v.instance == nil {
		return v.gpu.budget()
	}
	return v.instance.Memory - min(v.gpu.Reserve, v.instance.Memory)
}

// divisibleAt is the GPU, or the instance of a place on it; nil if that was removed.
func (g *GPUView) divisibleAt(p *Place) *divisible {
	if p.Instance == nil {
		return &divisible{gpu: g}
	}
	for i := range g.Instances {
		if in := &g.Instances[i]; in.Placement == *p.Instance {
			return &divisible{g, in}
		}
	}
	return nil
}

// budgetAt returns the budget at a place on the GPU; 0 if its instance was removed.
func (g *GPUView) budgetAt(p *Place) uint64 {
	if d := g.divisibleAt(p); d != nil {
		return d.budget()
	}
	return 0
}

// maxClients is the most clients of its MPS server; 0 without MPS.
func (v *divisible) maxClients() int {
	if v.instance == nil {
		return v.gpu.MaxClients
	}
	return v.instance.MaxClients
}

// maxClientsAt is the same for a place on the GPU.
func (g *GPUView) maxClientsAt(p *Place) int {
	if d := g.divisibleAt(p); d != nil {
		return d.maxClients()
	}
	return 0
}

// oneUser is why only the processes of one user at a time have contexts there; empty without such a rule.
func (v *divisible) oneUser() string {
	if v.instance == nil {
		return v.gpu.OneUser
	}
	return v.instance.OneUser
}

// heldBack is why a tenant gets no lease there; empty if it may.
func (v *divisible) heldBack(tenant string) string {
	if v.instance == nil {
		return v.gpu.HeldBack[tenant]
	}
	return v.instance.HeldBack[tenant]
}

// String names it in messages: "GPU 0", "3g.20gb at 4 on GPU 0".
func (v *divisible) String() string {
	if v.instance == nil {
		return v.gpu.name()
	}
	return fmt.Sprintf("%s at %d on %s", v.instance.Name, v.instance.Placement.Start, v.gpu.name())
}

// shared is what is in use of what the place is a share of, on one of its GPUs.
func (o *occupancy) shared(p *Place, id gpu.UUID) *gpuUsage {
	if p.Instance == nil {
		return o.at(id)
	}
	return o.at(id).inside(*p.Instance)
}

// inside is what is in use of a shared instance.
func (t *gpuUsage) inside(at gpu.Placement) *gpuUsage {
	if t.shared == nil {
		t.shared = map[gpu.Placement]*gpuUsage{}
	}
	u := t.shared[at]
	if u == nil {
		u = &gpuUsage{shares: map[Key]*grantShare{}}
		t.shared[at] = u
	}
	return u
}
