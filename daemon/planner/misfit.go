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

// checkReserved refuses reserved grants that do not fit together on the GPUs that they may use: their GPU memory, their shares, and the
// shares of those with latency: low.
func checkReserved(want *state.Desired, n *observe.Node) error {
	view := ProposedView(want, n)
	m := lease.ReservedMisfit(&view)
	if m == nil {
		return nil
	}
	text, x := misfitMessage("reserved grants", m, want, n, &view)
	e := api.FieldError{Path: x.path, Hint: x.hint, Message: text}
	return &api.Error{Kind: api.KindInfeasible, Message: e.Error(), Fields: []api.FieldError{e}, Hint: "nothing was changed; " + e.Hint}
}

// misfitMessage says which grants need more together than the GPUs have that they may use.
func misfitMessage(what string, m *lease.Misfit, want *state.Desired, n *observe.Node, view *lease.View) (text string, x misfitText) {
	x = describeMisfit(m)
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			if g := &t.Grants[j]; slices.Contains(m.Grants, lease.Key{Tenant: t.Name, Grant: g.Name}) {
				x.add(g, t.Name, fmt.Sprintf("tenants[%d].grants[%d]", i, j))
			}
		}
	}
	need, has := x.amounts(budgets(view, m.GPUs))
	each := "it has "
	if len(m.GPUs) > 1 {
		each = "a grant is on one GPU, and each has "
	}
	return fmt.Sprintf(
		"the %s on %s need %s together; %s%s (%s)", what, gpuNames(m.GPUs, n), strings.Join(need, " and "), each,
		strings.Join(has, " and "), strings.Join(x.names, ", "),
	), x
}

// misfitText is what the message about reserved grants that do not fit says.
type misfitText struct {
	shares, memory, lowLatency bool // what is said of it

	needShare, needMemory, needLowLatency float64
	names                                 []string
	path, hint                            string
}

// describeMisfit says of each amount that is too much, or of all if only all together are.
func describeMisfit(m *lease.Misfit) misfitText {
	x := misfitText{hint: "grant less, reserve fewer grants, or write overcommit: true for that GPU"}
	switch {
	case m.LowLatency: // Overcommit does not change what they may have.
		x.lowLatency, x.hint = true, "grant less, or leave out reserved or latency for some of them"
	case m.Share:
		x.shares = true
	case m.Memory:
		x.memory = true
	default:
		x.shares, x.memory, x.lowLatency = true, true, true
	}
	return x
}

// add counts a grant.
func (x *misfitText) add(g *api.GrantSpec, tenant, at string) {
	s := cmp.Or(g.Timeslice, g.MPS)
	if g.LowLatency() {
		x.needLowLatency += float64(s.Share)
	}
	x.needMemory += float64(state.GrantMemory(g))
	x.needShare += float64(s.Share)
	name, key := tenant+"/"+g.Name, "share"
	if x.shares || x.lowLatency {
		name += " " + s.Share.String()
	}
	if x.memory && s.GPUMemory != nil {
		name, key = name+" "+s.GPUMemory.Short(), "gpu_memory"
	}
	x.names = append(x.names, name)
	x.path = fmt.Sprintf("%s.%s.%s", at, g.Kind(), key)
}

// amounts are what the grants need, and what a GPU has.
func (x *misfitText) amounts(budgets string) (need, has []string) {
	if x.shares {
		need, has = append(need, percentOf(x.needShare)), append(has, "100%")
	}
	if x.memory {
		need, has = append(need, api.Bytes(x.needMemory).Short()), append(has, budgets+" after node.gpu_memory_reserve")
	}
	if x.lowLatency && x.needLowLatency > 0 {
		need, has = append(need, percentOf(x.needLowLatency)+" with latency: low"), append(has, api.MostLowLatency.String()+" for that")
	}
	return need, has
}

// percentOf is a sum of shares as text.
func percentOf(sum float64) string { return api.Percent(math.Round(sum*100) / 100).String() }

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
