package planner

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// mostOversubscribed is how many sets of grants the warnings of one plan name.
const mostOversubscribed = 8

// OversubscribedWarnings says which grants cannot all have a lease with what they are promised: their shares, or their GPU memory, add up
// to more than the GPUs have that they may use. It is no mistake: shares are weights then, and a lease waits for GPU memory. It is pure.
func OversubscribedWarnings(want *state.Desired, n *observe.Node) (out []string) {
	if want.Spec == nil || n.DriverErr != nil {
		return nil
	}
	// Shares and memory are checked one by one: each alone is what a reader adds up.
	for _, byMemory := range []bool{false, true} {
		view := ProposedView(want, n)
		for i := range view.Grants {
			alone(&view.Grants[i], byMemory)
		}
		for range mostOversubscribed {
			m := lease.ReservedMisfit(&view)
			if m == nil {
				break
			}
			text, _ := misfitMessage("grants", m, want, n, &view)
			i := slices.IndexFunc(view.Grants, func(g lease.Grant) bool { return g.Key() == m.Grants[0] })
			switch {
			case byMemory:
				text += ": a lease that finds too little GPU memory waits, or is refused"
			case view.Grants[i].Kind() == api.ModeMPS:
				text += ": a lease that finds too little of its share waits, or is refused"
			default:
				text += ": while all have work each gets less than its share"
			}
			out = append(out, text)
			view.Grants = slices.DeleteFunc(view.Grants, func(g lease.Grant) bool { return slices.Contains(m.Grants, g.Key()) })
		}
	}
	return out
}

// alone makes a grant one that always has its place, with its share or its memory only.
func alone(g *lease.Grant, byMemory bool) {
	g.Spec.Reserved, g.Spec.Latency = true, ""
	if s := g.Spec.Timeslice; s != nil {
		only := *s
		g.Spec.Timeslice = &only
		if byMemory {
			only.Share = 0
		} else {
			only.GPUMemory = nil
		}
	}
	if s := g.Spec.MPS; s != nil {
		only := *s
		g.Spec.MPS = &only
		if byMemory {
			only.Share = 0
		} else {
			only.GPUMemory = nil
		}
	}
}
