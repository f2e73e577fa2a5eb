package state

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

// AwaitsBoot reports whether a GPU keeps the MIG mode that the spec asks for until a boot of the host makes it the current one. boot is the
// one in which it waits; empty: it does not.
func AwaitsBoot(boot string, want *Desired, g *observe.GPU, node *observe.Node) bool {
	on := want.Mode(g.Identity.UUID) == api.ModeMIG
	return boot != "" && boot == node.Epoch.Boot && g.Err == nil && g.MIG.Current != on && g.MIG.Pending == on
}

// AfterBoot reports whether a GPU that waited for a boot can be planned again: the host was booted, or something else, such as a
// reset by another program, has made the mode the current one.
func AfterBoot(boot string, want *Desired, g *observe.GPU, node *observe.Node) bool {
	on := want.Mode(g.Identity.UUID) == api.ModeMIG
	return boot != "" && g.Err == nil && (boot != node.Epoch.Boot || g.MIG.Current == on)
}

// AwaitingBoot are the managed GPUs that wait for a boot.
func (x *State) AwaitingBoot(want *Desired, node *observe.Node) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	st := x.Stored()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if want.Manages(g.Identity.UUID) && AwaitsBoot(closing.AwaitedBoot(st, g.Identity.UUID), want, g, node) {
			out[g.Identity.UUID] = true
		}
	}
	return out
}
