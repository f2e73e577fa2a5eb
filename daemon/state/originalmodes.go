package state

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// ForgetRestored removes the original modes of the GPUs that have them: from then on gpushare has changed none.
func ForgetRestored(s *store.State, node *observe.Node) {
	for i := range node.GPUs {
		if g := &node.GPUs[i]; g.Err == nil && restored(s.OriginalModes[g.Identity.UUID], g) {
			delete(s.OriginalModes, g.Identity.UUID)
		}
	}
}

// restored reports whether a GPU has the modes from before gpushare changed them. The compute mode of a GPU with MPS is not compared:
// it is restored when MPS ends. A MIG mode that is pending is changed by the next boot.
func restored(was store.GPUModes, g *observe.GPU) bool {
	return (was.MIG == nil || *was.MIG == g.MIG.Current && *was.MIG == g.MIG.Pending) &&
		(was.ComputeMode == "" || g.ComputeMode == gpu.ComputeModeUnknown || was.ComputeMode == g.ComputeMode)
}
