package lease

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// chosenBy limits the grants to the place and the amounts that an engine chose. The engine cannot move the job: a grant that could
// give another place is none.
func (r *Request) chosenBy(tenant string, candidates []Grant, v *View) ([]Grant, error) {
	if r.Engine == nil || v.DriverUnavailable != "" {
		return candidates, nil
	}
	var only *gpu.UUID
	var at *Chosen
	if r.Instance != "" {
		d, c, err := r.chosenInstance(tenant, v)
		if err != nil {
			return nil, err
		}
		only, at = &d.UUID, c
	}
	var left []Grant
	why := ""
	for _, g := range candidates {
		n := max(g.Spec.Exclusive, 1)
		switch {
		case len(r.GPUs) > 0 && len(r.GPUs) != n:
			why = fmt.Sprintf("a lease of grant %s has %d, and the engine chose %d", g.Spec.Name, n, len(r.GPUs))
			continue
		case len(g.Only) > 0 && len(r.GPUs) > 0 && len(g.Only) != n:
			why = "the engine chose a GPU twice"
			continue
		case at != nil && g.Spec.MIG == "" && g.Spec.Slices == 0:
			why = fmt.Sprintf("grant %s is of no MIG instance", g.Spec.Name)
			continue
		}
		if more := r.Own.exceeds(&g); more != "" {
			why = more
			continue
		}
		if at != nil {
			g.Only, g.Chosen = []gpu.UUID{*only}, at
			if !g.reaches(v) {
				why = fmt.Sprintf("grant %s is not of that instance", g.Spec.Name)
				if at.onDemand {
					why = fmt.Sprintf("no instance of grant %s begins at memory slice %s", g.Spec.Name, r.Instance)
				}
				continue
			}
		}
		left = append(left, g)
	}
	if len(left) > 0 {
		return left, nil
	}
	return nil, &api.Error{
		Kind:    api.KindInvalid,
		Message: fmt.Sprintf("cannot place a lease of %s where the engine chose: %s", tenant, why),
		Hint:    "'gpushare tenant show " + tenant + "' shows its grants",
	}
}

// reaches reports whether the grant may have what was chosen for it, in use or not.
func (g *Grant) reaches(v *View) bool {
	d := v.gpu(g.Only[0])
	if d == nil || !g.mayUse(d) {
		return false
	}
	if g.Chosen.onDemand && g.mayCreate(d) {
		return true
	}
	for i := range d.Instances {
		in := &d.Instances[i]
		if g.Spec.InInstance() {
			if g.Chosen.allows(in, "") && g.matches(&in.ProfileView) {
				return true
			}
			continue
		}
		for p := range in.parts() {
			if g.Chosen.allows(in, p.device) && g.matches(&p.ProfileView) {
				return true
			}
		}
	}
	return false
}

// mayCreate reports whether an instance for the grant may be created where the engine chose.
func (g *Grant) mayCreate(d *GPUView) bool {
	for i := range d.DynamicProfiles.GI {
		q := &d.DynamicProfiles.GI[i]
		if _, ok := g.created(d, q); ok && slices.ContainsFunc(q.Placements, g.Chosen.allowsAt) {
			return true
		}
	}
	return false
}

// chosenInstance finds the instance that the request names: a MIG UUID, or the memory slice at which it begins. On a GPU with instances
// on demand it need not exist.
func (r *Request) chosenInstance(tenant string, v *View) (*GPUView, *Chosen, error) {
	start, err := strconv.ParseUint(r.Instance, 10, 32)
	byStart := err == nil
	for i := range v.GPUs {
		d := &v.GPUs[i]
		if len(r.GPUs) > 0 && !slices.ContainsFunc(r.GPUs, d.isNamed) || byStart && len(r.GPUs) != 1 {
			continue
		}
		if byStart && d.DynamicProfiles != nil {
			return d, &Chosen{placement: gpu.Placement{Start: uint32(start)}, onDemand: true}, nil
		}
		for j := range d.Instances {
			in := &d.Instances[j]
			if byStart && in.Placement.Start == uint32(start) {
				return d, &Chosen{placement: in.Placement}, nil
			}
			if k := slices.Index(in.UUIDs, gpu.UUID(r.Instance)); k >= 0 {
				c := &Chosen{placement: in.Placement}
				if slices.ContainsFunc(in.Compute, func(c ComputeView) bool { return string(c.UUID) == r.Instance }) {
					c.device = in.UUIDs[k]
				}
				return d, c, nil
			}
		}
	}
	where := ""
	if len(r.GPUs) > 0 {
		where = " on GPU " + strings.Join(r.GPUs, " or ")
	}
	return nil, nil, &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("cannot place a lease of %s in MIG instance %s: there is none%s", tenant, r.Instance, where),
		Hint:    "name a MIG UUID, or one GPU and the memory slice at which the instance begins: see 'gpushare mig list'",
	}
}
