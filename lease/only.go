package lease

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// resolveLocked returns the tenant and the grants that may serve the request on the GPUs and for the time that it names.
func (t *Table) resolveLocked(r *Request) (tenant string, candidates []Grant, err error) {
	if tenant, candidates, err = r.resolve(t.view.Grants); err != nil {
		return "", nil, err
	}
	candidates = r.placedBy(candidates, &t.view)
	if candidates, err = r.shortEnough(tenant, candidates); err != nil {
		return "", nil, err
	}
	if candidates, err = r.onlyOn(tenant, candidates, &t.view); err != nil {
		return "", nil, err
	}
	if candidates, err = r.chosenBy(tenant, candidates, &t.view); err != nil {
		return "", nil, err
	}
	return tenant, candidates, nil
}

// shortEnough drops the grants whose leases end before the time that the request names.
func (r *Request) shortEnough(tenant string, candidates []Grant) ([]Grant, error) {
	if r.MaxTime == nil {
		return candidates, nil
	}
	var left []Grant
	var longest api.Duration
	for i := range candidates {
		if most := candidates[i].Spec.MaxTime; most == nil || *r.MaxTime <= *most {
			left = append(left, candidates[i])
		} else {
			longest = max(longest, *most)
		}
	}
	if len(left) == 0 {
		return nil, &api.Error{
			Kind: api.KindInvalid,
			Message: fmt.Sprintf(
				"cannot place a lease of %s for %s: its grants have a max_time of at most %s", tenant, *r.MaxTime, longest,
			),
			Hint: fmt.Sprintf("ask for %s or less", longest),
		}
	}
	return left, nil
}

// onlyOn limits the grants to the GPUs that the request names, and drops those that may use none of them. The refusal is the
// same for a GPU that does not exist: who may not use a GPU does not learn of it.
func (r *Request) onlyOn(tenant string, candidates []Grant, v *View) ([]Grant, error) {
	if len(r.GPUs) == 0 || v.DriverUnavailable != "" {
		return candidates, nil
	}
	var named []gpu.UUID
	for i := range v.GPUs {
		if d := &v.GPUs[i]; slices.ContainsFunc(r.GPUs, d.isNamed) {
			named = append(named, d.UUID)
		}
	}
	var left []Grant
	var usable []string
	for i := range v.GPUs {
		d := &v.GPUs[i]
		if slices.ContainsFunc(candidates, func(g Grant) bool { return g.mayUse(d) }) {
			usable = append(usable, strings.TrimPrefix(d.name(), "GPU "))
		}
	}
	for i := range candidates {
		g := candidates[i]
		g.Only = named
		if slices.ContainsFunc(v.GPUs, func(d GPUView) bool { return g.mayUse(&d) }) && len(named) > 0 {
			left = append(left, g)
		}
	}
	if len(left) > 0 {
		return left, nil
	}
	if err := r.elsewhere(tenant, candidates, v); err != nil {
		return nil, err
	}
	e := &api.Error{
		Kind: api.KindNotFound,
		Message: fmt.Sprintf(
			"cannot place a lease of %s on GPU %s: none of its grants may use that GPU", tenant, strings.Join(r.GPUs, " or "),
		),
	}
	if len(usable) > 0 {
		e.Hint = "they may use GPU " + strings.Join(usable, ", ")
	}
	return nil, e
}

// isNamed reports whether a name is the index or the UUID of the GPU.
func (v *GPUView) isNamed(name string) bool {
	return v.Index >= 0 && name == strconv.Itoa(v.Index) || name == string(v.UUID)
}
