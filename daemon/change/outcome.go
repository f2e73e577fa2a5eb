package change

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// failures returns the GPUs that did not reach the desired state, and the reasons.
func failures(out engine.Outcome) map[gpu.UUID]string {
	failed := map[gpu.UUID]string{}
	for id, l := range out {
		if id != "" && l.State != engine.Reached {
			failed[gpu.UUID(id)] = l.Reason
		}
	}
	return failed
}

// outcomeHint reports whether failed steps were undone, on each GPU and on the node, and what to do next.
func outcomeHint(out engine.Outcome, node *observe.Node, steps []step.Step) string {
	rest := maps.Clone(out)
	maps.DeleteFunc(rest, func(_ string, l engine.Result) bool { return l.State == engine.Deferred })
	switch {
	case len(rest) == len(out):
		return hintOf(out, node, steps)
	case rest.State() == engine.Reached:
		return planner.BootHint
	}
	return hintOf(rest, node, steps) + "; of the others " + planner.BootHint
}

func hintOf(out engine.Outcome, node *observe.Node, steps []step.Step) string {
	var parts []string
	if slices.ContainsFunc(slices.Collect(maps.Values(out)), func(l engine.Result) bool { return l.State == engine.Undone }) {
		parts = append(parts, "failed steps were undone")
	}
	for _, id := range slices.Sorted(maps.Keys(out)) {
		if out[id].State == engine.Undone && id != "" {
			if text := undoneText(gpu.UUID(id), node, steps); text != "" {
				parts = append(parts, planner.ShortName(node, gpu.UUID(id))+" "+text)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(out)) {
		switch {
		case out[id].State != engine.Held:
		case id == "":
			parts = append(parts, "failed steps of the node were not undone")
		default:
			parts = append(
				parts, planner.ShortName(node, gpu.UUID(id))+" could not be restored: it has neither the former nor the desired state",
			)
		}
	}
	if len(parts) == 0 {
		return "no step failed: the missing parts are retried; 'gpushare status' lists them"
	}
	return strings.Join(parts, ", but ") + "; " + cmp.Or(strings.Join(helps(out), ", "), "correct the cause") + ", then " + again(out, node)
}

// again says how to try again: the one GPU that failed, or all by its spec.
func again(out engine.Outcome, node *observe.Node) string {
	failed := slices.Collect(maps.Keys(failures(out)))
	if len(failed) != 1 {
		return "apply again"
	}
	name := string(failed[0])
	if g, ok := node.GPU(failed[0]); ok {
		name = g.Identity.Argument()
	}
	return "'gpushare gpu retry " + name + "' or apply again"
}

// driversOwn is what is known after a comparison that failed.
const driversOwn = "the profiles that the driver reports were recorded, and the next plan uses them"

// helps returns what the failed steps say that helps, in the order of the GPUs.
func helps(out engine.Outcome) []string {
	var all []string
	for _, id := range slices.Sorted(maps.Keys(out)) {
		if e, ok := errors.AsType[*api.Error](out[id].Err); ok && e.Hint != "" && !slices.Contains(all, e.Hint) {
			all = append(all, e.Hint)
		}
		if _, ok := errors.AsType[*mig.ProfilesDiffer](out[id].Err); ok && !slices.Contains(all, driversOwn) {
			all = append(all, driversOwn)
		}
	}
	return all
}

// undoneText says what an undo did not restore on a GPU, by what was read back; empty when it is as before.
func undoneText(id gpu.UUID, node *observe.Node, steps []step.Step) string {
	g, ok := node.GPU(id)
	if !ok || g.Err != nil {
		return "does not answer: what was undone is not known"
	}
	own := slices.DeleteFunc(slices.Clone(steps), func(s step.Step) bool { return s.GPU != string(id) })
	if differs := mig.NotUndone(g.Snapshot, own); len(differs) > 0 {
		return "is not as before: " + strings.Join(differs, ", ")
	}
	return ""
}
