package planner

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// Leading is how many of the first steps are of a kind.
func Leading(steps []step.Step, kind string) int {
	n := slices.IndexFunc(steps, func(s step.Step) bool { return s.Kind != kind })
	if n < 0 {
		return len(steps)
	}
	return n
}

// Disturbs names whom steps disturb, each once.
func Disturbs(steps []step.Step) []string {
	var who []step.Subject
	for i := range steps {
		who = step.Merge(who, steps[i].Disturbs)
	}
	return step.Texts(who)
}

// Admit refuses to disturb anybody without authority. The planners refuse it already; this is the last gate.
func Admit(steps []step.Step, a Authority) error {
	for i := range steps {
		if s := &steps[i]; s.Disruption == step.Running && !a.Force {
			return &api.Error{
				Kind: api.KindInUse, Message: fmt.Sprintf("this would disturb %s: %s, because %s", step.Named(s.Disturbs), s.Text, s.Reason),
				Hint: "nothing was changed; --force stops them, the polite way, or wait until they end",
			}
		}
	}
	return nil
}

// ProblemError says why GPUs cannot become as wanted: the first in full, and how many more.
func ProblemError(problems map[gpu.UUID]error) *api.Error {
	if len(problems) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(problems))
	err := problems[ids[0]]
	e := &api.Error{Kind: api.KindInfeasible, Message: err.Error(), Hint: "nothing was changed"}
	var none *mig.NoProfile
	var not *mig.Infeasible
	switch {
	case errors.Is(err, gpu.ErrResetRequired):
		e.Hint = "nothing was changed; --allow-reset lets the driver reset that GPU, which nobody may use then"
	case errors.Is(err, gpu.ErrInUse):
		e.Kind, e.Hint = api.KindInUse, "nothing was changed; --force stops them, the polite way"
	case errors.As(err, &none), errors.As(err, &not):
	case gpu.IsAny(err, gpu.ErrLost, gpu.ErrTimeout, gpu.ErrStuck, gpu.ErrNotLoaded):
		e.Kind, e.Hint = api.KindUnavailable, "nothing was changed; 'gpushare gpu retry' tries the GPU again, 'gpushare doctor' says more"
	}
	if len(ids) > 1 {
		e.Message += fmt.Sprintf(" (and %d more GPUs)", len(ids)-1)
	}
	return e
}

// HoldersOf lists who uses the GPUs that cannot become as wanted because they are in use.
func HoldersOf(problems map[gpu.UUID]error, node *observe.Node, use Usage) []api.Holder {
	var out []api.Holder
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		if g, ok := node.GPU(id); ok && errors.Is(problems[id], gpu.ErrInUse) {
			out = append(out, holdersOn(g, use)...)
		}
	}
	return out
}

// FeasibleSpec refuses grants that can never be had: more memory than there is.
func FeasibleSpec(want *state.Desired, n *observe.Node) error {
	var wrong []api.FieldError
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.GPU {
			g := &t.GPU[j]
			ids := want.Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}]
			need := state.GrantMemory(g)
			if need == 0 || len(ids) == 0 {
				continue
			}
			var most uint64
			over := false
			for _, id := range ids {
				if gp, ok := n.GPU(id); ok {
					most = max(most, gp.Memory.Total-min(gp.Memory.Reserved+want.Reserve(id), gp.Memory.Total))
					over = over || want.GPUs[id].Overcommit
				}
			}
			if need > most && !over {
				wrong = append(wrong, api.FieldError{
					Path:    fmt.Sprintf("tenants[%d].gpu[%d].%s.memory", i, j, g.Kind()),
					Message: fmt.Sprintf("%s is more than any of its GPUs has: %s, the reserve taken off", api.Bytes(need).Short(), api.Bytes(most).Short()),
					Hint:    "grant less, or name larger GPUs",
				})
			}
		}
	}
	if len(wrong) == 0 {
		return reservedFit(want, n)
	}
	return &api.Error{Kind: api.KindInfeasible, Message: wrong[0].Error(), Fields: wrong, Hint: "nothing was changed"}
}

// reservedFit refuses reserved grants that do not fit beside each other on the one GPU that they all name.
func reservedFit(want *state.Desired, n *observe.Node) error {
	sum := map[gpu.UUID]uint64{}
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.GPU {
			if ids := want.Grants[state.GrantKey{Tenant: t.Name, Grant: t.GPU[j].Name}]; t.GPU[j].Reserved && len(ids) == 1 {
				sum[ids[0]] += state.GrantMemory(&t.GPU[j])
			}
		}
	}
	for id, need := range sum {
		g, ok := n.GPU(id)
		if !ok || want.GPUs[id].Overcommit {
			continue
		}
		if has := g.Memory.Total - min(g.Memory.Reserved+want.Reserve(id), g.Memory.Total); need > has {
			return &api.Error{
				Kind:    api.KindInfeasible,
				Message: fmt.Sprintf("the reserved grants on GPU %d want %s together, it has %s, the reserve taken off", g.Identity.Index, api.Bytes(need).Short(), api.Bytes(has).Short()),
				Hint:    "grant less, reserve fewer, or write overcommit: true for that GPU; nothing was changed",
			}
		}
	}
	return nil
}

// Number gives steps their ids, in order.
func Number(steps []step.Step) []step.Step {
	for i := range steps {
		steps[i].ID = i + 1
	}
	return steps
}
