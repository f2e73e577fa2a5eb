package planner

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// UnreachableGPUs are the GPUs that no step of a plan without authority brings to the spec, with the reasons and the commands
// that help. removes reports whether 'gpushare mig remove' works on a GPU.
func UnreachableGPUs(problems map[gpu.UUID]error, node *observe.Node, removes func(gpu.UUID) bool) []api.Unreachable {
	var out []api.Unreachable
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		r := Remedies{Node: node, Removes: removes}
		r.Command = "gpushare gpu retry " + r.name(id)
		out = append(out, api.Unreachable{GPU: string(id), Reason: problems[id].Error(), Hint: r.hint(id, problems[id])})
	}
	return out
}

// StillHeld are the GPUs that a failed change left, that have what the spec says by now and that take no lease until a retry, and
// those that wait for a boot: no step of a plan brings them to the spec. Those of problems have their own reason.
func StillHeld(
	held map[gpu.UUID]string, awaiting map[gpu.UUID]bool, node *observe.Node, steps []step.Step, problems map[gpu.UUID]error,
) []api.Unreachable {
	var out []api.Unreachable
	for _, id := range slices.Sorted(maps.Keys(held)) {
		g, ok := node.GPU(id)
		planned := !awaiting[id] && slices.ContainsFunc(steps, func(s step.Step) bool { return s.GPU == string(id) })
		if !ok || g.Err != nil || problems[id] != nil || planned {
			continue
		}
		hint := RetryHint(g, "tries it again")
		if awaiting[id] {
			hint = BootHint
		}
		out = append(out, api.Unreachable{
			GPU: string(id), Reason: fmt.Sprintf("%s (%s) is held: %s", g.Identity.Name(), id, held[id]), Hint: hint,
		})
	}
	return out
}

// UnreadParts are the parts of the node that could not be read: their plan has no step, and it is not known whether it needs one.
func UnreadParts(node *observe.Node, in NodeInput) []api.Unreachable {
	const hint = "'gpushare doctor' has more"
	var out []api.Unreachable
	if node.LoginFiltersErr != nil {
		out = append(
			out,
			api.Unreachable{Reason: "cannot read whether logins have access to managed GPUs: " + node.LoginFiltersErr.Error(), Hint: hint},
		)
	}
	if in.MigrationDenied != nil {
		if _, err := in.MigrationDenied(); err != nil {
			out = append(
				out,
				api.Unreachable{Reason: "cannot read whether moving processes out of leases is denied: " + err.Error(), Hint: hint},
			)
		}
	}
	return out
}

// UnlimitedGPUs are the GPUs whose power limit cannot be read, or cannot be what the spec says. Those that are held have their own
// reason.
func UnlimitedGPUs(problems map[gpu.UUID]error, held []api.HeldGPU) []api.Unreachable {
	var out []api.Unreachable
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		if !containsGPU(held, id) {
			out = append(out, api.Unreachable{GPU: string(id), Reason: "cannot plan the power limit: " + problems[id].Error()})
		}
	}
	return out
}
