package planner

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/text"
)

// CountLeading returns how many steps at the start of the list are of a kind.
func CountLeading(steps []step.Step, kind string) int {
	n := slices.IndexFunc(steps, func(s step.Step) bool { return s.Kind != kind })
	if n < 0 {
		return len(steps)
	}
	return n
}

// Disturbs names the leases and processes that the steps disturb, each once.
func Disturbs(steps []step.Step) []string {
	var users []step.Subject
	for i := range steps {
		users = step.Merge(users, steps[i].Disturbs)
	}
	return step.Texts(users)
}

// Admit refuses steps that disturb a lease or a process without authority. It is the last check: the planners refuse them too.
func Admit(steps []step.Step, a Authority) error {
	for i := range steps {
		if s := &steps[i]; s.Irreversible != "" && !a.Force {
			return notUndone(s)
		}
	}
	resets := ResetsOf(steps)
	i := slices.IndexFunc(resets, func(id gpu.UUID) bool {
		return !a.AllowReset || a.Resets != nil && !slices.Contains(a.Resets, string(id))
	})
	if i >= 0 {
		e := &api.Error{
			Kind:    api.KindNeedsPermission,
			Message: "this would reset GPU " + string(resets[i]),
			Hint:    "nothing was changed; --allow-reset allows that",
		}
		for _, id := range resets {
			e.Resets = append(e.Resets, string(id))
		}
		return e
	}
	if a.Force {
		return nil
	}
	var first *step.Step
	var users []step.Subject
	count := 0
	for i := range steps {
		if s := &steps[i]; s.Disruption == step.Running {
			if first == nil {
				first = s
			}
			users = step.Merge(users, s.Disturbs)
			count++
		}
	}
	if first == nil {
		return nil
	}
	e := &api.Error{
		Kind:    api.KindInUse,
		Message: fmt.Sprintf("this would disturb %s: %s, because %s", step.Join(users), first.Text, first.Reason),
		Hint:    "nothing was changed; wait until they end, or use --force to stop them (SIGTERM, then SIGKILL)",
	}
	if count > 1 {
		e.Message += fmt.Sprintf(" (and %s)", text.Count(count-1, "more step"))
	}
	return e
}

// notUndone refuses a step that cannot be undone.
func notUndone(s *step.Step) error {
	return &api.Error{
		Kind:    api.KindInfeasible,
		Message: fmt.Sprintf("cannot %s: %s", s.Text, s.Irreversible),
		Hint:    "nothing was changed; --force destroys it nevertheless",
	}
}

// ProblemError reports why GPUs cannot be changed as desired: the first GPU in full, and the number of the others. Its hint
// has one command.
func ProblemError(problems map[gpu.UUID]error, r Remedies) *api.Error {
	if len(problems) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(problems))
	err := problems[ids[0]]
	e := &api.Error{Kind: api.KindInfeasible, Message: err.Error(), Hint: "nothing was changed"}
	if errors.Is(err, gpu.ErrInUse) {
		e.Kind = api.KindInUse
	}
	if gpu.IsAny(err, gpu.ErrLost, gpu.ErrTimeout, gpu.ErrStuck, gpu.ErrNotLoaded) {
		e.Kind = api.KindUnavailable
	}
	if hint := r.hint(ids[0], err); hint != "" {
		e.Hint += "; " + hint
	}
	if len(ids) > 1 {
		e.Message += " (and " + text.Count(len(ids)-1, "more GPU") + ")"
	}
	return e
}

// ResetError refuses resets that were not allowed: an administrator has to permit them. It names the first GPU in full. r has the node.
func ResetError(resets map[gpu.UUID]error, r Remedies) *api.Error {
	if len(resets) == 0 {
		return nil
	}
	e := ProblemError(resets, r)
	e.Kind = api.KindNeedsPermission
	var ids []gpu.UUID // in the order in which people count them
	for i := range r.Node.GPUs {
		if id := r.Node.GPUs[i].Identity.UUID; resets[id] != nil {
			ids = append(ids, id)
			e.Resets = append(e.Resets, string(id))
		}
	}
	if len(ids) > 0 {
		e.Message = resets[ids[0]].Error()
	}
	if len(ids) > 1 {
		e.Message += " (and " + text.Count(len(ids)-1, "more GPU") + ")"
	}
	return e
}

// ConflictingUsers lists the users of the GPUs that cannot be changed because they are in use.
func ConflictingUsers(problems map[gpu.UUID]error, node *observe.Node, use Usage) []api.DeviceUser {
	var out []api.DeviceUser
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		if g, ok := node.GPU(id); ok && errors.Is(problems[id], gpu.ErrInUse) {
			out = append(out, deviceUsers(g, use)...)
		}
	}
	return out
}

// Number numbers the steps from 1, in order.
func Number(steps []step.Step) []step.Step {
	for i := range steps {
		steps[i].ID = i + 1
	}
	return steps
}
