package lease

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// matches tells whether the profile is what a MIG grant asks for. By name it is exact; by what it must have, the number
// of slices is exact too: a grant of three slices is not a grant of seven.
func (g *Grant) matches(p *ProfileView) bool {
	if g.Spec.MIG != "" {
		return p.Name == g.Spec.MIG || slices.Contains(g.Profiles, p.Name)
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

// memoryFits reads a condition as in ">=38GiB" ("<=", "=" and none, which means at least, are read too) and tells
// whether so many bytes meet it. An empty condition is met.
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

// requirement says for people what a MIG grant asks for.
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

// Matches tells whether a profile is what a MIG grant asks for.
func Matches(spec *api.GrantSpec, p ProfileView) bool {
	g := Grant{Spec: *spec}
	return g.matches(&p)
}
