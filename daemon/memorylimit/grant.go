package memorylimit

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// GrantChoice returns what would enforce the GPU-memory limit of a lease in the slice of a grant on one GPU.
func (m *Limits) GrantChoice(t *api.TenantSpec, g *api.GrantSpec, id gpu.UUID) quota.MemoryChoice {
	l := lease.Lease{Terms: lease.Grant{Tenant: t.Name, Spec: *g, Overuse: t.Overuse}}
	in := quota.MemoryBackendInput{
		MIG:       g.Kind() == api.ModeMIG,
		Enforcing: m.State.Desired().Enforcing(),
		MPS:       g.Kind() == api.ModeMPS,
		Overuse:   m.Overuse(&l),
		CanFreeze: m.CanFreeze,
	}
	if g.InInstance() {
		in.Driver.Reason = inInstance
		return quota.ChooseMemoryBackend(in)
	}
	s := m.sliceOf(&l)
	r, ok := m.get(target{id, s})
	switch a := m.abilityOf(id); {
	case ok && r.reason == "" && r.hard == state.GrantMemory(g):
		in.Driver = quota.DriverLimit{ReadBack: true, Together: r.dmem}
	case a.known && a.reason != "":
		in.Driver.Reason = a.reason
	case ok && r.reason != "":
		in.Driver.Reason = r.reason
	default:
		in.Driver.Reason = m.whyUnread(id)
	}
	return quota.ChooseMemoryBackend(in)
}
