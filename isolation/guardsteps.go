package isolation

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/internal/step"
)

// KindGuard is the kind of step that sets or takes off the guard of a cgroup. Arguments and undo: GuardArgs.
const KindGuard = "login-filter.set"

// GuardArgs is the guard that a cgroup should have; nil is none.
type GuardArgs struct {
	Cgroup string        `json:"cgroup"`
	Guard  *device.Guard `json:"filter,omitempty"`
}

// PlanGuards is the steps from the guards as read back to those that should stand. One that changes both ways has two
// steps, as slices have: first it closes and takes exceptions away, and when the hardware has changed it opens.
func PlanGuards(desired, observed []device.State, logins string) []step.Step {
	var narrow, widen []step.Step
	for _, want := range desired {
		i := slices.IndexFunc(observed, func(s device.State) bool { return s.Cgroup == want.Cgroup })
		who := guardWho(want.Cgroup, logins)
		if i < 0 {
			narrow = append(narrow, step.Step{
				Kind: KindGuard, Phase: step.RevokeAccess, Disruption: step.None,
				Args: step.Must(GuardArgs{want.Cgroup, &want.Guard}), Undo: step.Must(GuardArgs{Cgroup: want.Cgroup}),
				Text: fmt.Sprintf("close %s to %s%s", gpuText(want.Guard), who, users(want.Guard)), Reason: "nothing keeps it from managed GPUs; what is open already stays open",
			})
			continue
		}
		is := observed[i].Guard
		low := meetGuard(is, want.Guard)
		if !low.Equal(is) {
			narrow = append(narrow, step.Step{
				Kind: KindGuard, Phase: step.RevokeAccess, Disruption: step.None,
				Args: step.Must(GuardArgs{want.Cgroup, &low}), Undo: step.Must(GuardArgs{want.Cgroup, &is}),
				Text: fmt.Sprintf("close %s to %s%s", gpuText(low), who, users(low)), Reason: "it allows more than it should",
			})
		}
		if !low.Equal(want.Guard) {
			widen = append(widen, step.Step{
				Kind: KindGuard, Phase: step.GrantAccess, Disruption: step.None,
				Args: step.Must(GuardArgs{want.Cgroup, &want.Guard}), Undo: step.Must(GuardArgs{want.Cgroup, &low}),
				Text: fmt.Sprintf("close only %s to %s%s", gpuText(want.Guard), who, users(want.Guard)), Reason: "it denies more than it should",
			})
		}
	}
	for _, s := range observed {
		if slices.ContainsFunc(desired, func(d device.State) bool { return d.Cgroup == s.Cgroup }) {
			continue
		}
		widen = append(widen, step.Step{
			Kind: KindGuard, Phase: step.GrantAccess, Disruption: step.None,
			Args: step.Must(GuardArgs{Cgroup: s.Cgroup}), Undo: step.Must(GuardArgs{s.Cgroup, &s.Guard}),
			Text: "take the guard off " + guardWho(s.Cgroup, logins), Reason: "the spec asks for none there",
		})
	}
	return append(narrow, widen...)
}

func guardWho(cg, logins string) string {
	if cg == logins {
		return fmt.Sprintf("logins (%s)", cg)
	}
	return cg
}

// meetGuard is the guard as it is, and what the wanted one closes beside, with the exceptions of both. A device that was
// open to all so far keeps those who are to have it.
func meetGuard(is, want device.Guard) device.Guard {
	low := device.Guard{Closed: slices.Concat(is.Closed, want.Closed)}
	for _, e := range want.Except {
		wasClosed := slices.ContainsFunc(is.Closed, func(r device.Range) bool { return r.Has(e.Rule.Type, e.Rule.Major, e.Rule.Minor) })
		if !wasClosed || slices.Contains(is.Except, e) {
			low.Except = append(low.Except, e)
		}
	}
	for _, e := range is.Except {
		// What will be open to all is not closed to who has it.
		willBeClosed := slices.ContainsFunc(want.Closed, func(r device.Range) bool { return r.Has(e.Rule.Type, e.Rule.Major, e.Rule.Minor) })
		if !willBeClosed {
			low.Except = append(low.Except, e)
		}
	}
	return low.Canonical()
}

// GuardWriter is what the steps need of the host.
type GuardWriter interface {
	Filters(ctx context.Context) ([]device.State, error)
	// ChangeFilter puts what change makes of the guard that stands onto the cgroup; nil is none. Nobody else changes a guard
	// in between.
	ChangeFilter(ctx context.Context, cg string, change func(now *device.Guard) *device.Guard) (wrote bool, err error)
}

// GuardHandler carries out the steps of the guard. Leases come and go between the plan and its steps and have their
// exceptions changed at once. So of exceptions a step brings only what it adds and takes away.
type GuardHandler struct {
	Guards GuardWriter
}

// Applied tells whether the guard is as the step leaves it.
func (h *GuardHandler) Applied(ctx context.Context, s step.Step) (bool, error) {
	from, to, err := guardArgs(s)
	if err != nil {
		return false, err
	}
	all, err := h.Guards.Filters(ctx)
	if err != nil {
		return false, fmt.Errorf("cannot read the guards: %w", err)
	}
	i := slices.IndexFunc(all, func(g device.State) bool { return g.Cgroup == to.Cgroup })
	if i < 0 || to.Guard == nil {
		return i < 0 && to.Guard == nil, nil
	}
	return all[i].Guard.Equal(*redo(from.Guard, to.Guard, &all[i].Guard)), nil
}

// Do sets the guard. Doing it twice is doing it once.
func (h *GuardHandler) Do(ctx context.Context, s step.Step) error {
	from, to, err := guardArgs(s)
	if err != nil {
		return err
	}
	_, err = h.Guards.ChangeFilter(ctx, to.Cgroup, func(now *device.Guard) *device.Guard { return redo(from.Guard, to.Guard, now) })
	return err
}

// Undo puts back what was before.
func (h *GuardHandler) Undo(ctx context.Context, s step.Step) error {
	if len(s.Undo) == 0 {
		return nil
	}
	s.Args, s.Undo = s.Undo, s.Args
	return h.Do(ctx, s)
}

// redo does to the guard that stands now what leads from one to the other. Where none stood before, what stands now came with
// a lease since: a login may be taken into a grant in the moment in which the guard is made.
func redo(from, to, now *device.Guard) *device.Guard {
	if to == nil || now == nil {
		return to
	}
	if from == nil {
		from = &device.Guard{}
	}
	out := device.Guard{Closed: to.Closed, Except: slices.Clone(now.Except)}
	was, will := from.Canonical().Except, to.Canonical().Except
	out.Except = slices.DeleteFunc(out.Except, func(e device.Exception) bool {
		return slices.Contains(was, e) && !slices.Contains(will, e)
	})
	for _, e := range will {
		if !slices.Contains(was, e) {
			out.Except = append(out.Except, e)
		}
	}
	out = out.Canonical()
	return &out
}

// guardArgs is what a step leads from, as far as it says, and to.
func guardArgs(s step.Step) (from, to GuardArgs, err error) {
	if s.Kind != KindGuard {
		return from, to, unknownKind(s.Kind)
	}
	if err = decode(s.Args, &to); err == nil && len(s.Undo) > 0 {
		err = decode(s.Undo, &from)
	}
	return from, to, err
}
