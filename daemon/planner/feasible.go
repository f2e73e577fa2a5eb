package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
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

// checkReserved refuses reserved grants that do not fit together on the GPUs that they may use: their GPU memory, and their
// shares.
func checkReserved(want *state.Desired, n *observe.Node) error {
	view := ProposedView(want, n)
	m := lease.ReservedMisfit(&view)
	if m == nil {
		return nil
	}
	// Each is too much, or only both together are: then both are written.
	byShare, byMemory := m.Share || !m.Memory, !m.Share
	e := api.FieldError{Hint: "grant less, reserve fewer grants, or write overcommit: true for that GPU"}
	var memory, share float64
	var names []string
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			g := &t.Grants[j]
			if !slices.Contains(m.Grants, lease.Key{Tenant: t.Name, Grant: g.Name}) {
				continue
			}
			s := cmp.Or(g.Timeslice, g.MPS)
			memory += float64(state.GrantMemory(g))
			share += float64(s.Share)
			name, key := t.Name+"/"+g.Name, "share"
			if byShare {
				name += " " + s.Share.String()
			}
			if byMemory && s.GPUMemory != nil {
				name, key = name+" "+s.GPUMemory.Short(), "gpu_memory"
			}
			names = append(names, name)
			e.Path = fmt.Sprintf("tenants[%d].grants[%d].%s.%s", i, j, g.Kind(), key)
		}
	}
	var need, has []string
	if byShare {
		need, has = append(need, api.Percent(math.Round(share*100)/100).String()), append(has, "100%")
	}
	if byMemory {
		need, has = append(need, api.Bytes(memory).Short()), append(has, budgets(&view, m.GPUs)+" after node.gpu_memory_reserve")
	}
	each := "it has "
	if len(m.GPUs) > 1 {
		each = "a grant is on one GPU, and each has "
	}
	e.Message = fmt.Sprintf(
		"the reserved grants on %s need %s together; %s%s (%s)", gpuNames(m.GPUs, n), strings.Join(need, " and "), each,
		strings.Join(has, " and "), strings.Join(names, ", "),
	)
	return &api.Error{Kind: api.KindInfeasible, Message: e.Error(), Fields: []api.FieldError{e}, Hint: "nothing was changed; " + e.Hint}
}

func gpuNames(ids []gpu.UUID, n *observe.Node) string {
	var index []string
	for _, id := range ids {
		if g, ok := n.GPU(id); ok {
			index = append(index, g.Identity.Argument())
		}
	}
	if len(index) == 1 {
		return "GPU " + index[0]
	}
	return "GPUs " + strings.Join(index, ", ")
}

// budgets are the amounts that the GPUs have.
func budgets(v *lease.View, ids []gpu.UUID) string {
	var has []string
	for i := range v.GPUs {
		if g := &v.GPUs[i]; slices.Contains(ids, g.UUID) {
			has = append(has, api.Bytes(g.Capacity-min(g.Reserve, g.Capacity)).Short())
		}
	}
	slices.Sort(has)
	return strings.Join(slices.Compact(has), " or ")
}
