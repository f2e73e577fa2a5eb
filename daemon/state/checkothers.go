package state

import (
	"slices"
	"strings"
)

// QuiescesDCGM tells whether the spec has DCGM stopped around MIG changes, by whatever name its unit has here.
func (d *Desired) QuiescesDCGM() bool {
	return d.Spec != nil && slices.ContainsFunc(d.Spec.Node.Quiesce, func(unit string) bool {
		return strings.Contains(unit, "dcgm") || strings.Contains(unit, "hostengine")
	})
}
