package daemon

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// grantKey names a grant.
type grantKey struct{ tenant, grant string }

// desired is the accepted spec with its selectors resolved. It is immutable; the zero value is a node without a spec.
type desired struct {
	generation uint64
	spec       *api.Spec
	gpus       map[gpu.UUID]*api.GPUSpec
	grants     map[grantKey][]gpu.UUID // the GPUs that a grant may use
	released   *api.Released           // the node was given back with this; nil otherwise
}

// enforcing tells whether anything may be written to the node.
func (d *desired) enforcing() bool { return d.spec != nil && d.spec.Node.Enforce == "on" }

// enforce is the word for status.
func (d *desired) enforce() string {
	if d.enforcing() {
		return "on"
	}
	return "observe"
}

// mode is what a GPU is used for.
func (d *desired) mode(id gpu.UUID) string {
	if e, ok := d.gpus[id]; ok {
		return e.Mode
	}
	return api.ModeUnmanaged
}

// manages tells whether a GPU is ours to share out: neither left to others nor named by nobody.
func (d *desired) manages(id gpu.UUID) bool {
	m := d.mode(id)
	return m != api.ModeUnmanaged && m != api.ModeExternal
}

// dynamic tells whether instances are made on demand on a GPU.
func (d *desired) dynamic(id gpu.UUID) bool {
	e := d.gpus[id]
	return e != nil && e.Mode == api.ModeMIG && e.MIG != nil && e.MIG.Dynamic
}

// reserve is the GPU memory of one GPU that is never granted.
func (d *desired) reserve(id gpu.UUID) uint64 {
	if m := d.mode(id); (m != api.ModeTimeslice && m != api.ModeMPS) || d.spec.Node.Reserve == nil {
		return 0
	}
	return uint64(*d.spec.Node.Reserve)
}

// tenant finds a tenant.
func (d *desired) tenant(name string) (*api.TenantSpec, bool) {
	if d.spec == nil {
		return nil, false
	}
	for i := range d.spec.Tenants {
		if d.spec.Tenants[i].Name == name {
			return &d.spec.Tenants[i], true
		}
	}
	return nil, false
}
