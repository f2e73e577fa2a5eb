package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// RetryHint names the command that tries a GPU again, and what it does.
func RetryHint(g *observe.GPU, does string) string {
	return fmt.Sprintf("'gpushare gpu retry %s' %s", g.Identity.Argument(), does)
}

// InstanceAt finds the instance that begins at a memory slice.
func InstanceAt(g *observe.GPU, present []mig.Present, start uint32) (*mig.Present, error) {
	i := slices.IndexFunc(present, func(b mig.Present) bool { return b.Placement.Start == start })
	if i >= 0 {
		return &present[i], nil
	}
	var have []string
	for _, b := range present {
		have = append(have, InstanceName(g, &b))
	}
	hint := "it has none"
	if len(have) > 0 {
		hint = "it has " + strings.Join(have, ", ") + ": 'gpushare mig list' shows them"
	}
	return nil, &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("no MIG instance begins at slice %d of %s", start, g.Identity.Name()),
		Hint:    hint,
	}
}

// InstanceName is the profile and the start of an instance.
func InstanceName(g *observe.GPU, b *mig.Present) string {
	return fmt.Sprintf("%s at %d", g.Profiles.GIName(b.ProfileID), b.Placement.Start)
}

// PlanRemove plans the removal of idle instances that are in no layout, managed and foreign ones. Force allows to remove those that
// could not be created again; it stops no process.
func PlanRemove(
	e *api.GPUSpec, g *observe.GPU, a *store.Achieved, present []mig.Present, starts []uint32, held bool, auth Authority,
) ([]step.Step, error) {
	layout := state.NeededPlacements(e, g, a)
	removed := map[gpu.Placement]bool{}
	for _, start := range starts {
		b, err := InstanceAt(g, present, start)
		switch {
		case err != nil:
			return nil, err
		case b.InUse:
			return nil, &api.Error{
				Kind: api.KindInUse,
				Message: fmt.Sprintf(
					"cannot remove %s on %s: it is in use by %s", InstanceName(g, b), g.Identity.Name(), step.Join(b.InUseBy),
				),
				Hint: "nothing was changed; " + WaitForUsers,
			}
		case slices.Contains(layout, b.Placement) && (held || b.Foreign || len(b.Compute) == 0):
			return nil, &api.Error{
				Kind:    api.KindConflict,
				Message: fmt.Sprintf("cannot remove %s on %s: it is in the layout of the spec", InstanceName(g, b), g.Identity.Name()),
				Hint:    "nothing was changed; " + RetryHint(g, "changes the GPU to that layout"),
			}
		case slices.Contains(layout, b.Placement):
			return nil, &api.Error{
				Kind:    api.KindConflict,
				Message: fmt.Sprintf("cannot remove %s on %s: it is in the layout of the spec", InstanceName(g, b), g.Identity.Name()),
				Hint:    "nothing was changed; remove it from the layout and apply the spec",
			}
		}
		removed[b.Placement] = true
	}
	for i := range present {
		present[i].Keepable = !removed[present[i].Placement]
		present[i].Foreign = present[i].Foreign && present[i].Keepable
	}
	r, err := mig.Plan(*g.Profiles, present, nil, mig.Options{})
	if err == nil {
		err = r.Check(g.MIG, mig.Options{Force: auth.Force})
	}
	if err != nil {
		remedies := Remedies{Command: removal(g.Identity.Argument(), starts)}
		e := &api.Error{Kind: api.KindInfeasible, Message: err.Error(), Hint: "nothing was changed"}
		if hint := remedies.hint(g.Identity.UUID, err); hint != "" {
			e.Hint += "; " + hint
		}
		return nil, e
	}
	steps := r.Steps(g.Identity.UUID)
	for i := range steps {
		steps[i].Reason = "an administrator removes it"
	}
	return steps, nil
}
