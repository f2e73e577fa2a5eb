package state

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// GrantKey names a grant.
type GrantKey struct{ Tenant, Grant string }

// Desired is the accepted spec with its selectors resolved. It is immutable; the zero value is a node without a spec.
type Desired struct {
	Generation uint64
	Spec       *api.Spec
	GPUs       map[gpu.UUID]*api.GPUSpec
	Grants     map[GrantKey][]gpu.UUID // the GPUs that a grant may use
	Released   *api.Released           // the node was given back with this; nil otherwise
}

// Enforcing tells whether anything may be written to the node.
func (d *Desired) Enforcing() bool { return d.Spec != nil && d.Spec.Node.Enforce == "on" }

// Enforce is the word for status.
func (d *Desired) Enforce() string {
	if d.Enforcing() {
		return "on"
	}
	return "observe"
}

// Mode is what a GPU is used for.
func (d *Desired) Mode(id gpu.UUID) string {
	if e, ok := d.GPUs[id]; ok {
		return e.Mode
	}
	return api.ModeUnmanaged
}

// Manages tells whether a GPU is ours to share out: neither left to others nor named by nobody.
func (d *Desired) Manages(id gpu.UUID) bool {
	m := d.Mode(id)
	return m != api.ModeUnmanaged && m != api.ModeExternal
}

// Dynamic tells whether instances are made on demand on a GPU.
func (d *Desired) Dynamic(id gpu.UUID) bool {
	e := d.GPUs[id]
	return e != nil && e.Mode == api.ModeMIG && e.MIG != nil && e.MIG.Dynamic
}

// Reserve is the GPU memory of one GPU that is never granted.
func (d *Desired) Reserve(id gpu.UUID) uint64 {
	if m := d.Mode(id); (m != api.ModeTimeslice && m != api.ModeMPS) || d.Spec.Node.Reserve == nil {
		return 0
	}
	return uint64(*d.Spec.Node.Reserve)
}

// Tenant finds a tenant.
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
