package status

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/quota"
)

// memoryQualifier is what follows an amount of GPU memory, by what enforces it.
func memoryQualifier(c quota.MemoryChoice) string {
	return api.MemoryQualifier(string(c.Backend), c.Advisory())
}

// weakestChoice is what enforces the GPU memory of a grant on the GPU on which least does.
func (v *Viewer) weakestChoice(want *state.Desired, t *api.TenantSpec, g *api.GrantSpec) quota.MemoryChoice {
	on := want.Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}]
	if len(on) == 0 {
		on = []gpu.UUID{""} // No GPU is there: its policy decides.
	}
	var out quota.MemoryChoice
	for i, id := range on {
		if c := v.Managers.Memory.GrantChoice(t, g, id); i == 0 || !c.Enforced {
			out = c
		}
	}
	return out
}
