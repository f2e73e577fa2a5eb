package state

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Guarding tells whether logins are to be kept from managed GPUs.
func (d *Desired) Guarding() bool { return d.Spec != nil && d.Spec.Node.Guard == "logins" }

// Managed is the GPUs that are ours to give.
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
