package lease

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// matches reports whether the profile satisfies a MIG grant. A profile name must be of the same profile; without a name the
// number of slices must be the same: a grant of three slices is not satisfied by seven.
//
// A grant that names a compute instance (1c.3g.20gb) is satisfied by nothing else. One that names an instance is satisfied by
// a compute instance of it if it is split.
//
// An instance that is shared through MPS satisfies only grants of a share.
func (g *Grant) matches(p *ProfileView) bool {
	if p.MPS != g.Spec.InInstance() {
		return false
	}
	if g.Spec.MIG != "" {
		return gpu.SameProfile(cmp.Or(p.Split, p.Name), g.Spec.MIG) || p.Split != "" && gpu.SameProfile(p.Name, g.Spec.MIG)
	}
	if p.Slices != g.Spec.Slices {
		return false
	}
	for _, a := range g.Spec.Attributes {
		if !slices.Contains(p.Attributes, a) {
			return false
		}
	}
	ok, err := memoryFits(g.Spec.GPUMemory, p.Memory)
	return err == nil && ok
}

// smallest returns the memory of the smallest of the profiles that satisfies the grant, in bytes.
func (g *Grant) smallest(profiles []ProfileView) uint64 {
	least := uint64(math.MaxUint64)
	for i := range profiles {
		if g.matches(&profiles[i]) {
			least = min(least, profiles[i].Memory)
		}
	}
	return least
}

// memoryFits parses a condition such as ">=38GiB" ("<=" and "=" are possible, without an operator it means at least)
// and reports whether have satisfies it. An empty condition is satisfied.
func memoryFits(condition string, have uint64) (bool, error) {
	s := strings.TrimSpace(condition)
	if s == "" {
		return true, nil
	}
	op := ">="
	for _, o := range []string{">=", "<=", "="} {
		if rest, ok := strings.CutPrefix(s, o); ok {
			op, s = o, strings.TrimSpace(rest)
			break
		}
	}
	want, err := api.ParseBytes(s)
	if err != nil {
		return false, fmt.Errorf("cannot read the memory condition %q: %w", condition, err)
	}
	switch op {
	case "<=":
		return have <= uint64(want), nil
	case "=":
		return have == uint64(want), nil
	}
	return have >= uint64(want), nil
}

// requirement describes in messages what a MIG grant requires.
func (g *Grant) requirement() string {
	if g.Spec.MIG != "" {
		return g.Spec.MIG
	}
	s := fmt.Sprintf("%d-slice", g.Spec.Slices)
	if g.Spec.GPUMemory != "" {
		s += " " + g.Spec.GPUMemory
	}
	if len(g.Spec.Attributes) > 0 {
		s += " +" + strings.Join(g.Spec.Attributes, "+")
	}
	return s
}

// Matches reports whether a profile satisfies a MIG grant.
func Matches(spec *api.GrantSpec, p ProfileView) bool {
	g := Grant{Spec: *spec}
	return g.matches(&p)
}
