package planner

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
)

// FeasibleSpec refuses grants that can never be used, because they need more GPU memory than a GPU has.
func FeasibleSpec(want *state.Desired, n *observe.Node) error {
	var wrong []api.FieldError
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			g := &t.Grants[j]
			ids := want.Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}]
			if g.InInstance() {
				wrong = append(wrong, feasibleInInstance(want, n, g, ids, fmt.Sprintf("tenants[%d].grants[%d]", i, j))...)
				continue
			}
			need := state.GrantMemory(g)
			if need == 0 || len(ids) == 0 {
				continue
			}
			var largest uint64
			over := false
			for _, id := range ids {
				if gp, ok := n.GPU(id); ok {
					largest = max(largest, gp.Memory.Total-min(gp.Memory.Reserved+want.GPUMemoryReserve(id), gp.Memory.Total))
					over = over || want.GPUs[id].Overcommit || gp.Err != nil && gp.Memory.Total == 0 // What it has is not known.
				}
			}
			if need > largest && !over {
				wrong = append(wrong, api.FieldError{
					Path: fmt.Sprintf("tenants[%d].grants[%d].%s.gpu_memory", i, j, g.Kind()),
					Message: fmt.Sprintf(
						"%s is more than any of its GPUs has: %s after node.gpu_memory_reserve", api.Bytes(need).Short(),
						api.Bytes(largest).Short(),
					),
					Hint: "grant less, or name larger GPUs",
				})
			}
		}
	}
	if len(wrong) == 0 {
		return checkReserved(want, n)
	}
	return &api.Error{Kind: api.KindInfeasible, Message: wrong[0].Error(), Fields: wrong, Hint: "nothing was changed"}
}
