package planner

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// GPUNamed finds a GPU by its index or UUID.
func GPUNamed(node *observe.Node, name string) (*observe.GPU, error) {
	i := slices.IndexFunc(node.GPUs, func(g observe.GPU) bool {
		return string(g.Identity.UUID) == name || fmt.Sprint(g.Identity.Index) == name
	})
	if i < 0 {
		return nil, &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("there is no GPU %q", name), Hint: "'gpushare gpu list' shows them"}
	}
	return &node.GPUs[i], nil
}

// MPSGPU is GPUNamed for a GPU on which gpushare runs MPS.
func MPSGPU(want *state.Desired, node *observe.Node, name string) (*observe.GPU, error) {
	g, err := GPUNamed(node, name)
	if err != nil {
		return nil, err
	}
	if id := g.Identity.UUID; !want.WantsMPS(id) {
		return nil, &api.Error{
			Kind: api.KindInvalid, Message: fmt.Sprintf("gpushare does not run MPS on GPU %d: its mode is %s, and enforce is %s", g.Identity.Index, want.Mode(id), enforceText(want)),
			Hint: "'gpushare mps list' shows the GPUs with MPS",
		}
	}
	return g, nil
}

func enforceText(want *state.Desired) string {
	if want.Enforcing() {
		return "on"
	}
	return "not on"
}

// RestartMPS plans the restart of MPS on a GPU.
func RestartMPS(want *state.Desired, g *observe.GPU) step.Step {
	return mps.RestartStep(mpsSettings(want, g.Identity, want.GPUs[g.Identity.UUID]), mps.Observed{State: g.MPS, ComputeMode: g.ComputeMode, Processes: g.Processes})
}

// closeDrained closes the GPUs whose MPS an administrator drained.
func closeDrained(s *state.State, closed map[gpu.UUID]string, want *state.Desired) {
	for id := range s.Stored().DrainedMPS {
		if closed[id] == "" && want.WantsMPS(id) {
			closed[id] = "its MPS is drained"
		}
	}
}
