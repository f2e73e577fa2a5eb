package planner

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

// oneUser is why a control daemon has clients of one user at a time; empty if it has not, or is not known.
func oneUser(m *mps.State) string {
	switch {
	case m == nil || !m.SingleUser:
		return ""
	case m.Version != "":
		return fmt.Sprintf("its MPS, version %s, serves one user at a time", m.Version)
	}
	return "its MPS serves one user at a time"
}

// MaxClientsOf is the most MPS clients of an instance: those of a whole GPU in proportion to its compute slices, rounded down; 0
// without MPS. Source: NVIDIA's MPS guide, section on MIG, which has the proportion; the rounding is a guess.
func MaxClientsOf(g *observe.GPU, in *gpu.Instance) int {
	m, part, whole := g.MPSAt(in.Placement), uint32(0), uint32(0)
	if m == nil || g.Profiles == nil {
		return 0
	}
	for i := range g.Profiles.GI {
		p := &g.Profiles.GI[i]
		whole = max(whole, p.Slices)
		if p.ID == in.ProfileID {
			part = p.Slices
		}
	}
	if whole == 0 {
		return 0
	}
	return max(1, m.MaxClients()*int(part)/int(whole))
}
