package state

import (
	"slices"
)

// Quiesces tells whether the spec has a unit stopped around MIG changes.
func (d *Desired) Quiesces(unit string) bool {
	return unit != "" && d.Spec != nil && slices.Contains(d.Spec.Node.Quiesce, unit)
}
