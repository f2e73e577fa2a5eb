package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// follow prints a line for each step when it ends, and returns the outcome of the operation.
func (a *app) follow(ctx context.Context, op *api.Operation) error {
	if a.json {
		last, err := a.client.Follow(ctx, op, func(*api.Operation) {})
		if err != nil {
			return continues(err, op)
		}
		if err := a.printJSON(struct {
			SchemaVersion int `json:"schema_version"`
			*api.Operation
		}{1, last}); err != nil {
			return err
		}
		return outcome(last)
	}
	names := a.gpuNames(ctx, op.Plan.Steps)
	shown, waited := map[int]string{}, map[int]bool{}
	live := a.progress(names)
	defer live.clear()
	last, err := a.client.Follow(ctx, op, func(o *api.Operation) {
		live.clear()
		defer func() { live.show(o) }()
		for _, s := range o.Plan.Steps {
			if s.State == "doing" && s.WaitsFor != "" && !waited[s.ID] {
				waited[s.ID] = true
				fmt.Fprintf(a.io.Out, "  waits   %s%s: %s\n", names.prefix(s.GPU), printable(s.Text), printable(s.WaitsFor))
			}
			if shown[s.ID] == s.State || s.State == "pending" || s.State == "doing" {
				continue
			}
			shown[s.ID] = s.State
			fmt.Fprintln(a.io.Out, a.stepLine(&s, names, len("failed")))
		}
	})
	if err != nil {
		return continues(err, op)
	}
	for _, w := range last.Plan.Warnings { // Those of the plan were printed before.
		if !slices.Contains(op.Plan.Warnings, w) {
			fmt.Fprintf(a.io.Err, "warning: %s\n", sentence(w))
		}
	}
	if err := outcome(last); err != nil {
		return err
	}
	fmt.Fprintln(a.io.Out, "done: "+reached(last))
	return nil
}

// reached is what an operation without an error has reached.
func reached(op *api.Operation) string {
	switch op.Kind {
	case "retry":
		return "the GPU is in use again"
	case "import":
		return "gpushare manages them now"
	case "remove":
		return "they are removed"
	case "restore":
		return "the MIG instances are there again"
	case "unmanage":
		return "the node is unmanaged"
	case "dynamic":
		return "the instances are as the leases need them"
	}
	return fmt.Sprintf("generation %d is in force", op.Plan.Generation)
}

// stepLine is one step of an operation; width is that of the longest state.
func (a *app) stepLine(s *api.PlanStep, names gpuNames, width int) string {
	line := fmt.Sprintf(
		"  %s%s  %s%s", a.state(s.State), strings.Repeat(" ", max(0, width-len(s.State))), names.prefix(s.GPU), printable(s.Text),
	)
	if s.State == "done" && s.Seconds >= 0.05 {
		line += fmt.Sprintf("  (%.1f s)", s.Seconds)
	}
	if s.Error != "" {
		line += ": " + printable(s.Error)
	}
	return line
}

// continues adds a hint to the error of a wait that was interrupted: the change continues without this process.
func continues(err error, op *api.Operation) error {
	hint := fmt.Sprintf("the change continues without this command: 'gpushare operation wait %s' waits for it", op.ID)
	if errors.Is(err, context.Canceled) {
		return &interruptedError{hint: hint}
	}
	var e *api.Error
	if errors.As(err, &e) && e.Kind == api.KindUnavailable {
		hinted := *e
		hinted.Hint = "gpushared finishes or undoes the change when it runs again: see 'gpushare status'"
		return &hinted
	}
	return err
}

func outcome(op *api.Operation) error {
	if op.State == "done" {
		return nil
	}
	e := op.Error
	if e == nil {
		e = &api.Error{Kind: api.KindDegraded, Message: "the change ended " + op.State, Hint: "see 'gpushare status'"}
	}
	if op.State == "degraded" {
		return &exitError{code: api.ExitDegraded, err: e}
	}
	return e
}
