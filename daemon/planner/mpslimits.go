package planner

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mps"
)

const mebibyte = 1 << 20

// mpsSettings are the settings of the control daemon of a GPU. What a client may have at most is the largest share, and the largest
// amount of memory, of the grants on the GPU: the environment of a lease can be changed by its processes.
func mpsSettings(want *state.Desired, id gpu.Identity, e *api.GPUSpec) mps.Settings {
	set := mps.Settings{GPU: id.UUID, DenyBypass: want.Bypass(id.UUID) == api.BypassDeny}
	if want.Spec == nil {
		return set
	}
	unlimited := false
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			g := &t.Grants[j]
			if g.MPS == nil || !slices.Contains(want.Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}], id.UUID) {
				continue
			}
			set.Threads = max(set.Threads, float64(g.MPS.Share))
			memory := state.GrantMemory(g)
			if unlimited = unlimited || memory == 0 || id.Memory > 0 && memory >= id.Memory; unlimited {
				continue
			}
			set.Memory = max(set.Memory, (memory+mebibyte-1)/mebibyte*mebibyte) // MPS takes whole MiB.
		}
	}
	if set.Threads >= 100 {
		set.Threads = 0 // All.
	}
	if unlimited {
		set.Memory = 0
	}
	return set
}
