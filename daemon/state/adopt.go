package state

import (
	"slices"

	"github.com/gpushare/gpushare/api"
)

// Adopts tells whether a unit of this name may be adopted; an empty name stands for any.
func (d *Desired) Adopts(unit string) bool {
	return d.Spec != nil && slices.ContainsFunc(d.Spec.Tenants, func(t api.TenantSpec) bool {
		return t.Adopt != nil && (unit == "" || t.Adopt.Units[unit] != "")
	})
}
