package state

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/rename"
)

// GrantKey names a grant.
type GrantKey struct{ Tenant, Grant string }

// Desired is the accepted spec with its selectors resolved. It is immutable; the zero value is a node without a spec.
type Desired struct {
	Generation uint64
	Spec       *api.Spec
	GPUs       map[gpu.UUID]*api.GPUSpec
	Grants     map[GrantKey][]gpu.UUID // the GPUs that a grant may use
	Unmanaged  *api.Unmanaged          // when and by whom the node was unmanaged; nil otherwise
	Renames    rename.List             // that specs made up to this one
}

// Enforcing reports whether the node may be changed.
func (d *Desired) Enforcing() bool { return d.Spec != nil && d.Spec.Node.Enforce == "on" }

// Enforce is "on" or "observe", for status.
func (d *Desired) Enforce() string {
	if d.Enforcing() {
		return "on"
	}
	return "observe"
}

// Mode is the mode of a GPU.
func (d *Desired) Mode(id gpu.UUID) string {
	if e, ok := d.GPUs[id]; ok {
		return e.Mode
	}
	return api.ModeUnmanaged
}

// WantsMPS reports whether gpushare runs MPS on a GPU.
func (d *Desired) WantsMPS(id gpu.UUID) bool { return d.Enforcing() && d.Mode(id) == api.ModeMPS }

// Bypass is what happens to a process of a lease that uses a GPU in MPS mode and is no client of its MPS server.
func (d *Desired) Bypass(id gpu.UUID) string {
	if e := d.GPUs[id]; e != nil && e.MPS != nil && e.MPS.Bypass != "" {
		return e.MPS.Bypass
	}
	return api.BypassReport
}

// Manages reports whether gpushare manages a GPU: its mode is neither external nor unmanaged.
func (d *Desired) Manages(id gpu.UUID) bool {
	m := d.Mode(id)
	return m != api.ModeUnmanaged && m != api.ModeExternal
}

// Expected are the GPUs that the spec selected when it was applied: an optional one that was not there is not among them.
func (d *Desired) Expected() []gpu.UUID { return slices.Collect(maps.Keys(d.GPUs)) }

// ComputeGrants are the compute instances that grants name: on GPUs with instances on demand, instances are split into them.
func (d *Desired) ComputeGrants() []string {
	var names []string
	if d.Spec == nil {
		return nil
	}
	for i := range d.Spec.Tenants {
		for j := range d.Spec.Tenants[i].Grants {
			name := d.Spec.Tenants[i].Grants[j].MIG
			if n, err := gpu.ParseProfile(name); err == nil && n.Compute != 0 && n.Compute != n.Slices && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Optional reports whether the spec does without a GPU: that it is missing is no error and no condition.
func (d *Desired) Optional(id gpu.UUID) bool {
	e := d.GPUs[id]
	return e != nil && e.Optional
}

// Dynamic reports whether instances are created on demand on a GPU.
func (d *Desired) Dynamic(id gpu.UUID) bool {
	e := d.GPUs[id]
	return e != nil && e.Mode == api.ModeMIG && e.MIG != nil && e.MIG.Dynamic
}

// GPUMemoryReserve is the GPU memory of one GPU, or of each of its instances that is shared through MPS, that is never granted,
// in bytes.
func (d *Desired) GPUMemoryReserve(id gpu.UUID) uint64 {
	e := d.GPUs[id]
	shared := e != nil &&
		(e.Mode == api.ModeTimeslice || e.Mode == api.ModeMPS || e.Mode == api.ModeMIG && e.MIG != nil && len(e.MIG.MPS) > 0)
	if !shared || d.Spec.Node.GPUMemoryReserve == nil {
		return 0
	}
	return uint64(*d.Spec.Node.GPUMemoryReserve)
}

// Tenant returns a tenant by name.
func (d *Desired) Tenant(name string) (*api.TenantSpec, bool) {
	if d.Spec == nil {
		return nil, false
	}
	for i := range d.Spec.Tenants {
		if d.Spec.Tenants[i].Name == name {
			return &d.Spec.Tenants[i], true
		}
	}
	return nil, false
}

// Adopts reports whether a unit of this name may be adopted; an empty name means any unit.
func (d *Desired) Adopts(unit string) bool {
	return d.Spec != nil && slices.ContainsFunc(d.Spec.Tenants, func(t api.TenantSpec) bool {
		return t.Adopt != nil && (unit == "" || t.Adopt.Units[unit] != "")
	})
}

// QuiescesDCGM reports whether the spec quiesces DCGM, whose unit has different names on different hosts.
func (d *Desired) QuiescesDCGM() bool {
	return d.Spec != nil && slices.ContainsFunc(d.Spec.Node.Quiesce, func(unit string) bool {
		return strings.Contains(unit, "dcgm") || strings.Contains(unit, "hostengine")
	})
}

// KindDynamic is the kind of change that creates instances for requests and removes idle ones.
const KindDynamic = "dynamic"

// Keep is how long an idle instance stays on a GPU.
func (d *Desired) Keep(id gpu.UUID) time.Duration {
	if e := d.GPUs[id]; e != nil && e.MIG != nil && e.MIG.Keep != nil {
		return time.Duration(*e.MIG.Keep)
	}
	return time.Duration(api.DefaultKeep)
}

// AnyDynamic reports whether instances are created on demand on any GPU.
func (d *Desired) AnyDynamic() bool {
	for id := range d.GPUs {
		if d.Dynamic(id) {
			return true
		}
	}
	return false
}

// ClosedUnits are the units that are closed as logins are; nil without a login filter.
func (d *Desired) ClosedUnits() []string {
	if !d.FiltersLogins() {
		return nil
	}
	return d.isolation().Units
}

// FiltersLogins reports whether logins are denied managed GPUs outside a lease.
func (d *Desired) FiltersLogins() bool { return d.isolation().Logins == api.LoginsClosed }

// Managed lists the managed GPUs.
func (d *Desired) Managed() []gpu.UUID {
	var ids []gpu.UUID
	for id := range d.GPUs {
		if m := d.Mode(id); m != api.ModeExternal && m != api.ModeUnmanaged {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Quiesces reports whether the spec stops a unit around MIG changes.
func (d *Desired) Quiesces(unit string) bool {
	return unit != "" && d.Spec != nil && slices.Contains(d.Spec.Node.Quiesce, unit)
}

// StrictNUMA reports whether the memory of the tenant's leases is bound to the NUMA nodes of their GPUs.
func (d *Desired) StrictNUMA(tenant string) bool {
	return d.Spec != nil && slices.ContainsFunc(d.Spec.Tenants, func(t api.TenantSpec) bool {
		return t.Name == tenant && t.CPU != nil && t.CPU.NUMA == api.NUMAStrict
	})
}

// StopsOnRemoval reports whether the leases of users who are members of a tenant no more are stopped.
func (d *Desired) StopsOnRemoval(tenant string) bool {
	t, ok := d.Tenant(tenant)
	return ok && t.OnRemoval == api.OnRemovalStop
}

// MigrationCost is what tenants lose when moving processes is denied. Doctor and the plan show it.
const MigrationCost = "tenants cannot create scopes of their own from an ssh login ('systemd-run --user --scope', tmux and screen where they do that) nor run rootless podman with its systemd cgroups there; from inside their own user services they can"

// DeniesMigration reports whether moving processes out of leases is denied, and not only detected.
func (d *Desired) DeniesMigration() bool {
	return d.isolation().Migration == api.MigrationDeny
}

// StatusVisible is whose leases a member sees; empty: the default.
func (d *Desired) StatusVisible() string {
	if d.Spec == nil {
		return ""
	}
	return d.Spec.Node.StatusVisible
}

// StopsUnattributed reports whether processes on managed GPUs that are in no lease are stopped.
func (d *Desired) StopsUnattributed() bool {
	return d.isolation().Unattributed == api.UnattributedStop
}

// StopsUnfrozen reports whether a lease that cannot be frozen again and again is stopped.
func (d *Desired) StopsUnfrozen() bool {
	return d.isolation().Unfrozen == api.UnfrozenStop
}

// AttachesForAdmins reports whether only administrators may attach processes to leases.
func (d *Desired) AttachesForAdmins() bool {
	return d.isolation().Attach == api.AttachAdmin
}

// isolation is the node's policy for processes outside a lease; empty without a spec.
func (d *Desired) isolation() api.IsolationSpec {
	if d.Spec == nil || d.Spec.Node.Isolation == nil {
		return api.IsolationSpec{}
	}
	return *d.Spec.Node.Isolation
}

// Limits reports whether the logins of a tenant have a memory limit.
func (d *Desired) Limits(tenant string) bool {
	t, ok := d.Tenant(tenant)
	return ok && d.Enforcing() && t.PerLogin != nil && t.PerLogin.Memory != nil
}

// HasMPS reports whether MPS runs on a GPU, or in instances of it.
func (d *Desired) HasMPS(id gpu.UUID, inInstances bool) bool {
	e := d.GPUs[id]
	if inInstances {
		return e != nil && e.Mode == api.ModeMIG && e.MIG != nil && len(e.MIG.MPS) > 0
	}
	return e != nil && e.Mode == api.ModeMPS
}
