package planner

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Closures are all reasons why places take no lease now: what closers closed, and what the observation shows.
func Closures(s *state.State, node *observe.Node, now time.Time) closing.Closures {
	want := s.Desired()
	closed := slices.DeleteFunc(s.Closures(now), func(c store.Closure) bool {
		switch whole := c.Instance.Size == 0; closing.Kind(c.Kind) {
		case closing.Drained:
			return whole && !want.WantsMPS(c.GPU) // There is nothing to drain now.
		case closing.Occupied:
			return whole && want.Mode(c.GPU) != api.ModeExclusive // Leases have it together.
		}
		return false
	})
	list := slices.Concat(closed, missing(want, node), unanswered(node))
	if ch := s.Changing(); ch != nil {
		for id := range ch.GPUs {
			list = append(list, found(closing.Changing, closing.OnGPU(id), "it is being changed by "+ch.Operation))
		}
	}
	if want.Enforcing() && len(s.Stored().Change) == 0 {
		list = append(list, unrestored(s.Stored(), want, node, list)...)
	}
	return append(list, withoutMPS(want, node, s.ManagesInstance, list)...).Sorted()
}

// found is a closure that an observation shows.
func found(k closing.Kind, at store.Where, why string) store.Closure {
	return store.Closure{Where: at, Kind: string(k), Reason: why}
}

// explained reports whether another closure is the cause of what an observation shows of a GPU.
func explained(list closing.Closures, id gpu.UUID) bool {
	return slices.ContainsFunc(list.At(closing.OnGPU(id)), func(c store.Closure) bool {
		switch closing.Kind(c.Kind) {
		case closing.Unanswered, closing.Changing, closing.Held, closing.Restoring, closing.Behind:
			return true
		}
		return false
	})
}

// missing are the GPUs of the spec that the driver does not find.
func missing(want *state.Desired, node *observe.Node) (out closing.Closures) {
	for i := range node.Missing {
		id := node.Missing[i].UUID
		if want.GPUs[id] == nil {
			continue
		}
		why := state.MissingReason
		if want.Optional(id) {
			why += ", and the spec does without it" // It may never come back, and no condition says that it is missing.
		}
		out = append(out, found(closing.Missing, closing.OnGPU(id), why))
	}
	return out
}

// unanswered are the GPUs that do not answer.
func unanswered(node *observe.Node) (out closing.Closures) {
	for i := range node.GPUs {
		if g := &node.GPUs[i]; g.Err != nil {
			out = append(out, found(closing.Unanswered, closing.OnGPU(g.Identity.UUID), Cause(g.Err)))
		}
	}
	return out
}

// unrestored are the GPUs whose layout was not restored yet, and those that did not answer when the spec in force was applied: until
// they are as it says they take no lease.
func unrestored(st *store.State, want *state.Desired, node *observe.Node, list closing.Closures) (out closing.Closures) {
	for id := range want.GPUs {
		a, ok := st.Achieved[id]
		switch {
		case !ok || explained(list, id):
		case state.EpochEnded(a.Epoch, node):
			out = append(out, found(closing.Restoring, closing.OnGPU(id), "its layout is being restored"))
		case want.Manages(id) && a.Generation < want.Generation:
			out = append(out, found(closing.Behind, closing.OnGPU(id), "it is not as the spec says yet"))
		}
	}
	return out
}

// withoutMPS are the GPUs and the shared instances that no client can join.
func withoutMPS(want *state.Desired, node *observe.Node, managed ManagedInstance, list closing.Closures) (out closing.Closures) {
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if want.WantsMPS(id) && !g.MPS.Admits() && !explained(list, id) {
			out = append(out, found(closing.MPSDown, closing.OnGPU(id), MPSReason(g.MPS)))
		}
		for j := range g.Instances {
			in := &g.Instances[j]
			if len(in.Compute) != 1 || explained(list, id) || !managed(id, in) {
				continue // It has another reason, or is not to be shared.
			}
			if want.Enforcing() && want.SharesInstances(id, g.Profiles, g.Profiles.GIName(in.ProfileID)) &&
				!g.MPSAt(in.Placement).Admits() {
				out = append(out, found(closing.MPSDown, store.Where{GPU: id, Instance: in.Placement}, MPSReason(g.MPSAt(in.Placement))))
			}
		}
	}
	return out
}

// closePlaces says in the view of a GPU why its places take no lease.
func closePlaces(v *lease.GPUView, closed closing.Closures) {
	whole := closed.At(closing.OnGPU(v.UUID))
	v.Closed = whole.Without(closing.Occupied).Text()
	v.Occupied = whole.Of(closing.Occupied).Text()
	v.HeldBack = heldBack(closed, closing.OnGPU(v.UUID))
	for i := range v.Instances {
		in := &v.Instances[i]
		at := store.Where{GPU: v.UUID, Instance: in.Placement}
		here := closed.At(at)
		if in.MPS && in.Unusable == "" {
			in.Unusable = here.Without(closing.Occupied).Text()
		}
		in.Occupied = here.Of(closing.Occupied).Text()
		in.HeldBack = heldBack(closed, at)
		for j := range in.Compute {
			at.Compute = in.Compute[j].UUID
			in.Compute[j].Occupied = closed.At(at).Of(closing.Occupied).Text()
		}
	}
}

// heldBack is why tenants get no lease of the MPS at a place, by tenant.
func heldBack(closed closing.Closures, at store.Where) map[string]string {
	var out map[string]string
	for _, c := range closed.Of(closing.HeldBack) {
		tenant := c.Tenant
		if c.Tenant = ""; c.Where == at {
			if out == nil {
				out = map[string]string{}
			}
			c.Tenant = tenant
			out[tenant] = closing.Text(&c)
		}
	}
	return out
}
