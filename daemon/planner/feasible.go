package planner

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
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
			need := state.GrantMemory(g)
			if need == 0 || len(ids) == 0 {
				continue
			}
			var largest uint64
			over := false
			for _, id := range ids {
				if gp, ok := n.GPU(id); ok {
					largest = max(largest, gp.Memory.Total-min(gp.Memory.Reserved+want.GPUMemoryReserve(id), gp.Memory.Total))
					over = over || want.GPUs[id].Overcommit
				}
			}
			if need > largest && !over {
				wrong = append(wrong, api.FieldError{
					Path:    fmt.Sprintf("tenants[%d].grants[%d].%s.gpu_memory", i, j, g.Kind()),
					Message: fmt.Sprintf("%s is more than any of its GPUs has: %s after node.gpu_memory_reserve", api.Bytes(need).Short(), api.Bytes(largest).Short()),
					Hint:    "grant less, or name larger GPUs",
				})
			}
		}
	}
	if len(wrong) == 0 {
		return checkReserved(want, n)
	}
	return &api.Error{Kind: api.KindInfeasible, Message: wrong[0].Error(), Fields: wrong, Hint: "nothing was changed"}
}

// checkReserved refuses reserved grants that do not fit together on the one GPU that they all name.
func checkReserved(want *state.Desired, n *observe.Node) error {
	sum := map[gpu.UUID]uint64{}
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			if ids := want.Grants[state.GrantKey{Tenant: t.Name, Grant: t.Grants[j].Name}]; t.Grants[j].Reserved && len(ids) == 1 {
				sum[ids[0]] += state.GrantMemory(&t.Grants[j])
			}
		}
	}
	for id, need := range sum {
		g, ok := n.GPU(id)
		if !ok || want.GPUs[id].Overcommit {
			continue
		}
		if has := g.Memory.Total - min(g.Memory.Reserved+want.GPUMemoryReserve(id), g.Memory.Total); need > has {
			return &api.Error{
				Kind:    api.KindInfeasible,
				Message: fmt.Sprintf("the reserved grants on GPU %d need %s together; it has %s after node.gpu_memory_reserve", g.Identity.Index, api.Bytes(need).Short(), api.Bytes(has).Short()),
				Hint:    "nothing was changed; grant less, reserve fewer grants, or write overcommit: true for that GPU",
			}
		}
	}
	return nil
}
