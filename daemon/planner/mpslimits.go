package planner

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mps"
)

const mebibyte = 1 << 20

// mpsSettings are the settings of the control daemon of a GPU.
func mpsSettings(want *state.Desired, id gpu.Identity, e *api.GPUSpec) mps.Settings {
	set := mps.Settings{GPU: id.UUID, DenyBypass: want.Bypass(id.UUID) == api.BypassDeny}
	limitByGrants(&set, want, id.Memory, func(g *api.GrantSpec) bool { return !g.InInstance() })
	return set
}

// limitByGrants sets what a client of a control daemon may have at most: the largest share, and the largest amount of memory, of the
// grants there, because the environment of a lease can be changed by its processes. takes reports whether a grant that may use the
// GPU has its leases there; total is the memory of the device in bytes, 0 if it is not known.
func limitByGrants(set *mps.Settings, want *state.Desired, total uint64, takes func(g *api.GrantSpec) bool) {
	if want.Spec == nil {
		return
	}
	unlimited := false
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			g := &t.Grants[j]
			if g.MPS == nil || !takes(g) || !slices.Contains(want.Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}], set.GPU) {
				continue
			}
			set.Threads = max(set.Threads, float64(g.MPS.Share))
			memory := state.GrantMemory(g)
			if unlimited = unlimited || memory == 0 || total > 0 && memory >= total; unlimited {
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
}
