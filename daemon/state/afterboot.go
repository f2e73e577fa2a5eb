package state

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// AwaitsBoot reports whether a GPU keeps the MIG mode that the spec asks for until a boot of the host makes it the current one.
func AwaitsBoot(h store.Held, want *Desired, g *observe.GPU, node *observe.Node) bool {
	on := want.Mode(g.Identity.UUID) == api.ModeMIG
	return h.Boot != "" && h.Boot == node.Epoch.Boot && g.Err == nil && g.MIG.Current != on && g.MIG.Pending == on
}

// AfterBoot reports whether a GPU that waited for a boot can be planned again: the host was booted, or something else, such as a
// reset by another program, has made the mode the current one.
func AfterBoot(h store.Held, want *Desired, g *observe.GPU, node *observe.Node) bool {
	on := want.Mode(g.Identity.UUID) == api.ModeMIG
	return h.Boot != "" && g.Err == nil && (h.Boot != node.Epoch.Boot || g.MIG.Current == on)
}

// AwaitingBoot are the managed GPUs that wait for a boot.
func (x *State) AwaitingBoot(want *Desired, node *observe.Node) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	held := x.Stored().Held
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if h, ok := held[g.Identity.UUID]; ok && want.Manages(g.Identity.UUID) && AwaitsBoot(h, want, g, node) {
			out[g.Identity.UUID] = true
		}
	}
	return out
}
