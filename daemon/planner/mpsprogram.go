package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

// WantsMPS reports whether a spec has a GPU in MPS mode.
func WantsMPS(want *state.Desired) bool {
	for _, e := range want.GPUs {
		if e.Mode == api.ModeMPS {
			return true
		}
	}
	return false
}

// MPSWarnings are what the installed MPS control program cannot do of a spec that has GPUs in MPS mode.
func MPSWarnings(want *state.Desired, node *observe.Node, p mps.Program) []string {
	if p.Missing != "" {
		return []string{"MPS cannot start: " + p.Missing}
	}
	var out []string
	if p.Unknown != "" {
		out = append(out, p.Unknown)
	}
	if why := p.Differs(node.Driver.DriverVersion, node.Driver.CUDAVersion); why != "" {
		out = append(out, why+": install the MPS package of the driver")
	}
	if p.MultiUser {
		return out
	}
	for i := range node.GPUs {
		id := node.GPUs[i].Identity
		if tenants := sharedByUsers(want, id.UUID); len(tenants) > 0 {
			out = append(
				out,
				fmt.Sprintf(
					"MPS control program %s serves one user at a time: while a user has leases on %s, those of other users of %s wait",
					p.Release, id.Name(), strings.Join(tenants, ", "),
				),
			)
		}
	}
	return out
}

// sharedByUsers lists the tenants that have a grant on a GPU in MPS mode, if they have more than one user together, as far as the
// spec says: a group may have many.
func sharedByUsers(want *state.Desired, id gpu.UUID) []string {
	if e := want.GPUs[id]; e == nil || e.Mode != api.ModeMPS {
		return nil
	}
	var tenants []string
	users, groups := map[string]bool{}, 0
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		if !slices.ContainsFunc(t.Grants, func(g api.GrantSpec) bool {
			return g.Kind() == api.ModeMPS &&
				(g.GPUs == nil || slices.Contains(want.Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}], id))
		}) {
			continue
		}
		tenants = append(tenants, t.Name)
		for _, name := range t.Members.Users {
			users[name] = true
		}
		groups += len(t.Members.Groups)
	}
	if len(users) > 1 || groups > 0 {
		return tenants
	}
	return nil
}
