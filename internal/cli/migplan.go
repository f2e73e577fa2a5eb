package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/mig"
)

// planAnswer is the answer to one question in JSON. The numbers count GPU instances.
type planAnswer struct {
	SchemaVersion int        `json:"schema_version"`
	Model         string     `json:"model,omitempty"` // the board, or
	GPU           string     `json:"gpu,omitempty"`   // the GPU of this node
	Feasible      bool       `json:"feasible"`
	Destroyed     int        `json:"destroyed"`
	Created       int        `json:"created"`
	Completed     int        `json:"completed,omitempty"` // kept, with compute instances added
	Disturbed     int        `json:"disturbed"`           // destroyed while in use; 0 without force
	Steps         []planStep `json:"steps"`               // in this order
	Layout        []planStep `json:"layout,omitzero"`     // the instances afterwards, in order of placement; left out if it is not feasible
	Reason        string     `json:"reason,omitempty"`    // if it is not feasible
	ForceHelps    bool       `json:"force_helps,omitempty"`
	Nearest       []string   `json:"nearest,omitzero"` // the nearest feasible layout, if this is not
	// StoppedAfter: the search for the nearest layout was stopped after so many steps, and nearest is empty. 0: it was not.
	StoppedAfter int `json:"stopped_after,omitempty"`
}

// planStep is one instance, with what a plan does to it.
type planStep struct {
	Kind      string           `json:"kind,omitempty"` // destroy | complete | create
	Profile   string           `json:"profile"`
	Placement api.MIGPlacement `json:"placement"`
	Compute   []uint32         `json:"compute,omitempty"` // slices of its compute instances, if it is not one that uses all
	// NeedsForce is why only --force destroys it; empty: no authority is needed.
	NeedsForce string `json:"needs_force,omitempty"`
}

func (t *trial) answer() planAnswer {
	out := planAnswer{SchemaVersion: 1, Model: t.model, GPU: t.uuid, Feasible: t.refused == nil, Steps: []planStep{}}
	if r := t.refused; r != nil {
		out.Reason, out.ForceHelps, out.Nearest, out.StoppedAfter = r.reason, r.force, []string{}, r.stopped
		if r.nearest != nil {
			out.Nearest = mig.Layout(r.nearest.Layout).Names()
		}
		return out
	}
	r := &t.plan
	out.Destroyed, out.Created, out.Completed, out.Disturbed = len(r.Destroy), len(r.Create), len(r.Complete), len(r.Disturbed)
	var destroyed []gpu.Instance
	for _, b := range r.Destroy {
		destroyed = append(destroyed, b.Instance)
	}
	forced := t.forced()
	for _, x := range mig.Record(t.grid, destroyed) {
		s := stepOf("destroy", x)
		s.NeedsForce = forced[x.Placement]
		out.Steps = append(out.Steps, s)
	}
	for _, x := range r.Complete {
		out.Steps = append(out.Steps, stepOf("complete", x))
	}
	for _, x := range r.Create {
		out.Steps = append(out.Steps, stepOf("create", x))
	}
	out.Layout = []planStep{}
	for _, x := range r.After() {
		out.Layout = append(out.Layout, stepOf("", x))
	}
	return out
}

func stepOf(op string, x mig.Placed) planStep {
	s := planStep{Kind: op, Profile: x.Name, Placement: api.MIGPlacement(x.Placement)}
	for _, c := range x.Compute {
		s.Compute = append(s.Compute, c.Slices)
	}
	return s
}

func (a *app) migPlan() *cobra.Command {
	var q question
	var id, have, want, batch string
	var offline bool
	c := &cobra.Command{
		Use: "plan --want LAYOUT", Short: "Plan the change from one MIG layout to another", Args: noArgs,
		Long: `Plan shows which instances are kept, destroyed and created when the layout of a GPU
changes. It takes the best plan: no instance in use is disturbed without --force, then
the fewest instances are destroyed, then the least memory is created again, then the
free slices keep the most profiles possible. A step that only --force allows says so,
and why. It changes nothing; apply does.

The GPU is one of this node (--gpu), or with --offline a built-in board with the given
instances (--model, --have). That needs no daemon.

An instance is written as its profile, with @ and its first memory slice, and ! if it is
in use: 3g.20gb@4!. A desired instance needs no @, and 1g.5gb*3 is three of them.
1c.3g.20gb is a compute instance that shares a 3g.20gb with others. A list may also be
JSON, with objects such as {"slices": 1, "gpu_memory": ">=8GiB"}.

An infeasible layout is refused with the reason, the nearest feasible layout, and exit
code 7.`,
		Example: `  gpushare mig plan --gpu 0 --want '3g.20gb,1g.5gb*2'
  gpushare mig plan --offline --model a100-40 --have '3g.20gb@4!,1g.5gb@0' --want '3g.20gb,1g.5gb,1g.5gb'
  gpushare mig plan --offline --model h200-141 --want '3g.71gb,2g.35gb,1g.18gb*2' --json
  gpushare mig plan --offline --batch requests.jsonl   # lines of {"model": …, "have": …, "want": …}`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPlanFlags(cmd, id, offline, batch != ""); err != nil {
				return err
			}
			if batch != "" {
				return a.migBatch(cmd.Context(), batch, q.Force)
			}
			var err error
			if q.Have, err = readInstances(have); err != nil {
				return usageError{err: fmt.Errorf("--have: %w", err)}
			}
			if q.Want, err = readInstances(want); err != nil {
				return usageError{err: fmt.Errorf("--want: %w", err)}
			}
			var t *trial
			if offline {
				t, err = q.try(cmd.Context())
			} else {
				t, err = a.tryOn(cmd.Context(), id, &q)
			}
			if err != nil {
				return err
			}
			return a.showTrial(t)
		},
	}
	c.Flags().StringVar(&id, "gpu", "", "a GPU of this node, by index or UUID")
	c.Flags().BoolVar(&offline, "offline", false, "plan for a board, without a daemon and a GPU")
	c.Flags().StringVar(&q.Model, "model", "", "the board, as in a100-40")
	c.Flags().StringVar(&have, "have", "", "the existing instances, as in '3g.20gb@4!,1g.5gb@0'")
	c.Flags().StringVar(&want, "want", "", "the desired layout, as in '3g.20gb,1g.5gb*2'")
	c.Flags().BoolVar(&q.Force, "force", false, "allow destroying instances in use, as few as possible")
	c.Flags().StringVar(&batch, "batch", "",
		"a file of requests, one JSON object a line (- for standard input); each is answered at once with a JSON line",
	)
	_ = c.RegisterFlagCompletionFunc("model", completeBoards) // These fail only for flags that do not exist.
	a.completeFlag(c, "gpu", gpusOf)
	_ = c.RegisterFlagCompletionFunc("have", completeInstances(true))
	_ = c.RegisterFlagCompletionFunc("want", completeInstances(false))
	return c
}

// checkPlanFlags refuses flags that ask for nothing, or for two things.
func checkPlanFlags(c *cobra.Command, id string, offline, batch bool) error {
	f := c.Flags()
	switch {
	case !offline && id == "":
		return usageError{
			err:  errors.New("no GPU is named"),
			hint: "write --gpu 0 for one of this node, or --offline --model a100-40 for a board",
		}
	case !offline && (f.Changed("model") || f.Changed("have") || batch):
		return usageError{
			err:  errors.New("--model, --have and --batch are for a board"),
			hint: "write --offline too, and leave out --gpu",
		}
	case offline && id != "":
		return usageError{
			err:  errors.New("--gpu names a GPU of this node"),
			hint: "leave out --offline, or name a board with --model",
		}
	case batch && (f.Changed("model") || f.Changed("have") || f.Changed("want")):
		return usageError{err: errors.New("--batch reads the requests from a file"), hint: "leave out --model, --have and --want"}
	case !batch && !f.Changed("want"):
		return usageError{err: errors.New("no layout given"), hint: "write --want '3g.20gb,1g.5gb', or --want '' for an empty GPU"}
	}
	return nil
}

// tryOn plans for a GPU of this node.
func (a *app) tryOn(ctx context.Context, id string, q *question) (*trial, error) {
	d, err := a.migDevice(ctx, id)
	if err != nil {
		return nil, err
	}
	if d.grid.Width == 0 {
		return nil, &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot read the profiles of GPU %d: its driver reports them only in MIG mode", d.index),
			Hint:    "try its board: 'gpushare mig plan --offline --model …'",
		}
	}
	return d.try(ctx, q.Want, q.Force)
}

// showTrial prints the answer to one question.
func (a *app) showTrial(t *trial) error {
	if a.json {
		if err := a.printJSON(t.answer()); err != nil {
			return err
		}
		if t.refused != nil {
			return &exitError{code: api.ExitInfeasible}
		}
		return nil
	}
	fmt.Fprintf(a.io.Out, "%s\n\n", t.title())
	now := presentRow("now", t.grid, t.present)
	if r := t.refused; r != nil {
		e := &api.Error{Kind: api.KindInfeasible, Message: r.message}
		var hints []string
		if r.nearest == nil || len(r.nearest.Layout) == 0 {
			a.diagram(t.grid.Width, now)
		} else {
			a.diagram(t.grid.Width, now, planRow("nearest", t.present, r.nearest))
			hints = append(hints, "possible is "+counted(mig.Layout(r.nearest.Layout).Names()))
		}
		if r.stopped != 0 {
			hints = append(hints, (&mig.Infeasible{StoppedAfter: r.stopped}).Stopped())
		}
		hints = append(hints, t.forceHints()...)
		e.Hint = strings.Join(hints, "; ")
		return e
	}
	a.diagram(t.grid.Width, now, planRow("then", t.present, &t.plan))
	fmt.Fprintln(a.io.Out)
	var rows [][]string
	answer := t.answer()
	for _, s := range answer.Steps {
		row := []string{"  " + s.Kind, labelOf(s), fmt.Sprintf("at %d", s.Placement.Start), ""}
		if s.NeedsForce != "" {
			row[3] = "needs --force: " + s.NeedsForce
		}
		rows = append(rows, row)
	}
	if !t.enabled {
		fmt.Fprint(a.io.Out, "MIG mode is off, and would be turned on first.\n\n")
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.io.Out, "No changes: the layout is as desired.")
	} else {
		a.table(rows)
		fmt.Fprintf(a.io.Out, "\n%s\n", summary(&answer))
	}
	a.capacity(t)
	return nil
}

func labelOf(s planStep) string {
	if len(s.Compute) == 0 {
		return s.Profile
	}
	var parts []string
	for _, c := range s.Compute {
		parts = append(parts, fmt.Sprintf("%dc", c))
	}
	return s.Profile + " of " + strings.Join(parts, "+")
}

func summary(r *planAnswer) string {
	out := fmt.Sprintf("%d destroyed, %d created", r.Destroyed, r.Created)
	if r.Completed > 0 {
		out += fmt.Sprintf(", %d completed", r.Completed)
	}
	if r.Disturbed == 0 {
		return out + ", none in use disturbed."
	}
	return out + fmt.Sprintf(", %d in use disturbed.", r.Disturbed)
}

// capacity prints what still fits next to the layout of the plan.
func (a *app) capacity(t *trial) {
	var left []gpu.Instance
	for _, x := range t.plan.After() {
		left = append(left, gpu.Instance{ProfileID: x.ProfileID, Placement: x.Placement})
	}
	var names []string
	for _, r := range mig.Placeable(t.grid, left) {
		names = append(names, r.Profile.Name)
	}
	if len(names) > 0 {
		fmt.Fprintf(a.io.Out, "One more of these fits: %s.\n", strings.Join(names, ", "))
	}
}

// counted lists names with counts: "2 × 1g.5gb, 3g.20gb".
func counted(names []string) string {
	n := map[string]int{}
	var order []string
	for _, s := range names {
		if n[s]++; n[s] == 1 {
			order = append(order, s)
		}
	}
	for i, s := range order {
		if n[s] > 1 {
			order[i] = fmt.Sprintf("%d × %s", n[s], s)
		}
	}
	return strings.Join(order, ", ")
}

// badLine is the answer to a line that cannot be read.
type badLine struct {
	SchemaVersion int        `json:"schema_version"`
	Line          int        `json:"line"`
	Error         *api.Error `json:"error"`
}

// maxQuestion is the largest size of a line of a batch, in bytes.
const maxQuestion = 1 << 20

// migBatch answers one question a line. An infeasible question is an answer. A line that cannot be read is answered with
// an error, and the exit code is then 2.
func (a *app) migBatch(ctx context.Context, file string, force bool) error {
	in := a.io.In
	if file != "-" {
		f, err := openFile(ctx, file)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return usageError{err: fmt.Errorf("cannot read the requests: %w", err), hint: "'--batch -' reads standard input"}
		}
		defer f.Close()
		in = f
	}
	out := bufio.NewWriter(a.io.Out)
	enc := json.NewEncoder(out)
	lines := boundedread.Scanner(in, maxQuestion)
	n, bad := 0, 0
	for lines.Scan() {
		if err := ctx.Err(); err != nil {
			return err
		}
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		q := question{Force: force}
		err := strict(lines.Bytes(), &q, questionKeys)
		var t *trial
		if err == nil {
			t, err = q.try(ctx)
		}
		if errors.Is(err, context.Canceled) {
			return err
		}
		var answer any
		if err == nil {
			answer = t.answer()
		} else {
			bad++
			e := &api.Error{Kind: api.KindInvalid, Message: err.Error()}
			var usage usageError
			if errors.As(err, &usage) {
				e.Hint = usage.hint
			}
			answer = badLine{1, n, e}
		}
		if err := enc.Encode(answer); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
		// A program that asks line by line waits for the answer to each.
		if err := out.Flush(); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		return usageError{err: fmt.Errorf("cannot read line %d of the requests: %w", n+1, err)}
	}
	if bad > 0 {
		return &exitError{code: api.ExitUsage}
	}
	return nil
}

// completeBoards completes the built-in boards.
func completeBoards(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	all, err := board.All()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, b := range all {
		if strings.HasPrefix(b.Short, strings.ToLower(typed)) {
			out = append(out, b.Short+"\t"+b.Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeInstances completes profiles of the board for the last word of a list, with their placements if needed.
func completeInstances(placed bool) completer {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		model, err := cmd.Flags().GetString("model")
		if err != nil {
			return nil, directive
		}
		b, err := board.Find(model)
		if err != nil {
			return nil, directive
		}
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		word := typed[len(before):]
		var out []string
		for _, p := range b.GPUProfiles().GI {
			words := []string{p.Name}
			if placed {
				words = nil
				for _, at := range p.Placements {
					words = append(words, fmt.Sprintf("%s@%d", p.Name, at.Start))
				}
			}
			for _, w := range words {
				if strings.HasPrefix(w, word) {
					out = append(out, fmt.Sprintf("%s%s\t%s, %d SMs", before, w, gib(p.Memory), p.SMs))
				}
			}
		}
		return out, directive
	}
}
