package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/text"
)

// maxDocument is one byte more than the daemon reads, so that the daemon refuses a longer document itself.
const maxDocument = 1<<20 + 1

// applying is how an apply is requested, next to what the daemon gets.
type applying struct {
	noWait bool
	wait   *api.Duration // while another change is under way; nil: it is refused then
	match  *uint64       // refuse unless this generation is in force
	drain  draining
	// maybeAccepted: the spec was sent, and the daemon has not refused it, so that the change may be carried out whatever the command says.
	maybeAccepted bool
}

func (a *app) applyCommand() *cobra.Command {
	var file string
	var o client.ApplyOptions
	var how applying
	c := &cobra.Command{
		Use: "apply -f FILE", Short: "Put a spec in force", Args: noArgs,
		Long: `Apply sends a spec to the daemon. The daemon plans the fewest and least disruptive
steps, checks that they are possible, and only then carries them out. Nothing in use is
stopped without --force, and neither is the enforcement of running leases ended: a spec
without 'enforce: on', or without the tenant or grant of a lease, is refused then, and
every such lease is named. A GPU is reset only with permission: a change of MIG mode
that needs it is planned, apply asks on a terminal, and otherwise exits with 8 unless
--allow-reset is given. A second apply of the same file changes nothing. A GPU that
does not answer holds back no other: it is held, apply names it and exits with 6, and it
is changed when it answers again.

A change of a GPU that an engine places on (owner: slurm) is refused while jobs may have it, with
the commands that drain, change and resume. With --drain apply does that itself in Slurm: it drains
this node, waits for its jobs, applies, and resumes the node if slurmd knows the GPUs as they are
then. What fails, or Ctrl-C, before the spec is sent resumes the node, and so does a refusal; after
that the change may be carried out without this command, and the node stays drained, with the
commands that resume it. A node that was drained before stays drained, and one that is down, in
maintenance or about to restart is refused. Without --drain Slurm is asked: the change is made if the
node is drained there and has no jobs. --drained ENGINE says so for an engine that is not asked, as
kubernetes.`,
		Example: "  gpushare apply -f node.yaml --check --diff\n  gpushare apply -f node.yaml\n  gpushare get | gpushare apply -f -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := a.document(cmd.Context(), file)
			if err != nil {
				return err
			}
			o.File = file
			if how.drain.on {
				return a.applyDrained(cmd, doc, o, &how)
			}
			return a.applied(cmd, doc, o, &how)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the spec; - for standard input (required)")
	_ = c.MarkFlagFilename("file", "yaml", "yml") // It fails only for a flag that does not exist.
	a.applyFlags(c, &o, &how)
	how.drain.add(c)
	return c
}

// applyFlags are the flags of every apply.
func (a *app) applyFlags(c *cobra.Command, o *client.ApplyOptions, how *applying) {
	f := c.Flags()
	f.BoolVar(&o.Check, "check", false, "print the whole plan, and what an apply would be refused for: change nothing")
	f.BoolVar(&o.Check, "dry-run", false, "the same as --check")
	f.BoolVar(&o.Diff, "diff", false, "show the spec before and after")
	f.BoolVar(
		&o.Force,
		"force",
		false,
		"stop leases and processes that use the GPUs: SIGTERM, a grace period, then SIGKILL; end the enforcement of running leases; allow steps that cannot be undone",
	)
	f.BoolVar(
		&o.AllowReset,
		"allow-reset",
		false,
		"let the driver reset a GPU if a change of MIG mode needs it; without it a terminal is asked, and a script gets exit code 8",
	)
	f.BoolVar(&how.noWait, "no-wait", false, "do not wait for the change to finish")
	jobFlags(c, &o.Drained, &how.drain)
	waitFlag(c, &how.wait, "wait for the end of another change")
	f.Func("if-generation", "refuse unless this `generation` is in force", func(s string) error {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return errors.New("a generation is a number")
		}
		how.match = &n
		return nil
	})
}

// applied sends a spec, shows the plan, and follows the change.
func (a *app) applied(cmd *cobra.Command, doc []byte, o client.ApplyOptions, how *applying) error {
	o.IfMatch = how.match
	var res *api.ApplyResult
	err := a.withPermission(cmd.Context(), o.File, !o.Check && !o.AllowReset, func(resets []string) error {
		if resets != nil {
			o.Resets = resets
		}
		return a.afterOthers(cmd.Context(), how.wait, func() (err error) {
			how.maybeAccepted = true
			res, err = a.send(cmd.Context(), doc, o, &how.drain)
			how.maybeAccepted = !surelyRefused(err)
			return err
		})
	})
	if err != nil {
		a.refusedPlan(cmd.Context(), err)
		return err
	}
	if a.json {
		return a.applyJSON(cmd, res, how.noWait, leftHeld)
	}
	err = nil
	if res.Operation == nil {
		err = leftHeld(res)
	}
	if err != nil {
		res.Plan.Unreachable = nil // The error has them.
	}
	a.plan(cmd.Context(), &res.Plan, res.Checked, res.Changed)
	if res.Operation == nil {
		if err != nil {
			return err
		}
		if res.Changed && !res.Checked {
			fmt.Fprintf(a.io.Out, "done: generation %d is in force\n", res.Generation)
		}
		return nil
	}
	if how.noWait {
		a.warnHeld(&res.Plan)
		fmt.Fprintf(
			a.io.Out, "generation %d is accepted: 'gpushare operation wait %s' waits for the end\n", res.Plan.Generation,
			printable(res.Operation.ID),
		)
		return nil
	}
	return a.follow(cmd.Context(), res.Operation)
}

// surelyRefused reports whether an error is the refusal of a spec by the daemon, which then carries out nothing of it. An answer that was
// lost, or that says that something is not there now, is none.
func surelyRefused(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && !client.Unreached(err) && e.Kind != api.KindUnavailable && e.Kind != api.KindInternal
}

// document reads a file or standard input.
func (a *app) document(ctx context.Context, file string) ([]byte, error) {
	if file == "" {
		return nil, usageError{err: errors.New("no spec given: write -f FILE, or -f - for standard input")}
	}
	in := a.io.In
	if file != "-" {
		f, err := openFile(ctx, file)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, unreadSpec(err)
		}
		defer f.Close()
		in = f
	}
	b, _, err := boundedread.Prefix(in, maxDocument) // The daemon refuses one that is cut.
	switch {
	case errors.Is(err, syscall.EISDIR):
		return nil, unreadSpec(err)
	case err != nil:
		return nil, fmt.Errorf("cannot read the spec: %w", err)
	}
	return b, nil
}

// unreadSpec is that what was named is no file that can be read.
func unreadSpec(err error) error {
	return usageError{err: fmt.Errorf("cannot read the spec: %w", err), hint: "a spec is one file, or - for standard input"}
}

// applyJSON prints the result of a change when that has ended. left is the outcome of one without steps.
func (a *app) applyJSON(cmd *cobra.Command, res *api.ApplyResult, noWait bool, left func(*api.ApplyResult) error) error {
	var failed error
	if res.Operation != nil && !noWait {
		last, err := a.client.Follow(cmd.Context(), res.Operation, func(*api.Operation) {})
		if err != nil {
			return continues(err, res.Operation)
		}
		res.Operation = last
		failed = outcome(last)
	} else if res.Operation == nil {
		failed = left(res)
	}
	if err := a.printJSON(struct {
		SchemaVersion int `json:"schema_version"`
		*api.ApplyResult
	}{1, res}); err != nil {
		return err
	}
	return failed
}

// leftHeld is the outcome of an apply without steps that left parts of the node as they are; nil if it left none.
func leftHeld(res *api.ApplyResult) error {
	return leftAfter(fmt.Sprintf("generation %d is in force", res.Generation), res)
}

// leftAfter is leftHeld after what was done.
func leftAfter(done string, res *api.ApplyResult) error {
	held := res.Plan.Held
	if res.Plan.Complete() || res.Checked || res.Plan.Observe {
		return nil
	}
	var names []string
	var hint string
	for i := range held {
		names = append(names, heldGPU(&held[i]))
		hint = "a held GPU is changed when it answers again; '" + held[0].Command + "' tries it"
	}
	for i := range res.Plan.Unreachable {
		names = append(names, res.Plan.Unreachable[i].Reason)
		hint = cmp.Or(hint, res.Plan.Unreachable[i].Hint)
	}
	return &exitError{code: api.ExitDegraded, err: &api.Error{
		Kind: api.KindDegraded, Message: fmt.Sprintf("%s, but %s", done, strings.Join(names, "; ")), Hint: hint,
	}}
}

// warnHeld names the GPUs that a change leaves as they are. Its end, if it is waited for, names them too.
func (a *app) warnHeld(p *api.Plan) {
	for i := range p.Held {
		fmt.Fprintf(a.io.Err, "warning: %s; '%s' tries it\n", sentence(heldGPU(&p.Held[i])), printable(p.Held[i].Command))
	}
}

// warnUnreachable says what no step changes, and what helps.
func (a *app) warnUnreachable(p *api.Plan) {
	for i := range p.Unreachable {
		u := &p.Unreachable[i]
		fmt.Fprintf(a.io.Err, "warning: not reached: %s\n", sentence(u.Reason))
		if u.Hint != "" {
			fmt.Fprintf(a.io.Err, "  %s\n", printable(u.Hint))
		}
	}
}

// heldGPU says that a GPU is held, and why.
func heldGPU(h *api.HeldGPU) string {
	return fmt.Sprintf("%s is held, because it does not answer: %s", h.Name(), h.Reason)
}

func (a *app) planCommand() *cobra.Command {
	var file string
	var exitCode bool
	var o client.ApplyOptions
	var d draining
	c := &cobra.Command{
		Use:   "plan [-f FILE]",
		Short: "Show what would change, without changing it",
		Args:  noArgs,
		Long: `With a file: what applying it would change. Without: how the node differs from the spec in force.

With --exit-code there are three answers: 0, there is nothing to do; 10, something would change, and the whole spec is reached
then; 11, something differs that no step can change, or could not be read: the reasons are on standard error, and in
"unreachable" and "held" of --json. Another code means that an apply of the file would be refused, or that the driver does not
answer.`,
		Example: "  gpushare plan -f node.yaml\n  gpushare plan --exit-code   # 0, 10 or 11\n  gpushare plan --host @hosts --exit-code   # 12: some could not be read",
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, err := a.wouldChange(cmd, file, o, &d)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(plan)
			} else {
				a.plan(cmd.Context(), plan, true, false)
			}
			switch {
			case err != nil || !exitCode:
				return err
			case !plan.Complete():
				return &exitError{code: api.ExitIncomplete}
			case !plan.Empty:
				return &exitError{code: api.ExitChanges}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "file", "f", "", "a spec; - for standard input")
	_ = c.MarkFlagFilename("file", "yaml", "yml") // It fails only for a flag that does not exist.
	f.BoolVar(
		&exitCode, "exit-code", false,
		"exit with 10 when something would change, with 11 when something differs that cannot be changed",
	)
	f.BoolVar(&o.Diff, "diff", false, "show the spec before and after")
	f.BoolVar(&o.Force, "force", false, "plan as if --force were given to apply")
	f.BoolVar(&o.AllowReset, "allow-reset", false, "plan as if --allow-reset were given to apply")
	jobFlags(c, &o.Drained, &d)
	return c
}

func (a *app) wouldChange(cmd *cobra.Command, file string, o client.ApplyOptions, d *draining) (*api.Plan, error) {
	if file == "" {
		return a.client.Plan(cmd.Context())
	}
	doc, err := a.document(cmd.Context(), file)
	if err != nil {
		return nil, err
	}
	o.File, o.Check = file, true
	res, err := a.send(cmd.Context(), doc, o, d)
	if err != nil {
		a.refusedPlan(cmd.Context(), err)
		return nil, err
	}
	return &res.Plan, nil
}

// refusedPlan prints the plan of a check that is refused, before the refusal says why. With --json the refusal has it.
func (a *app) refusedPlan(ctx context.Context, err error) {
	var refused *api.Error
	if !a.json && errors.As(err, &refused) && refused.Plan != nil {
		a.plan(ctx, refused.Plan, true, true)
	}
}

// plan prints a plan. Warnings come first, on standard error, so that no parser of the plan takes them for a step. changed
// says that the spec differs, even if the plan has no step.
func (a *app) plan(ctx context.Context, p *api.Plan, checked, changed bool) {
	for _, w := range p.Warnings {
		if !slices.ContainsFunc(p.Unreachable, func(u api.Unreachable) bool { return strings.HasSuffix(w, u.Reason) }) {
			fmt.Fprintf(a.io.Err, "warning: %s\n", sentence(w))
		}
	}
	a.warnUnreachable(p)
	if checked || p.Observe {
		a.warnHeld(p)
	}
	if p.Diff != nil {
		a.diff(p.Diff)
	}
	for i := range p.Renames {
		fmt.Fprintln(a.io.Out, printable(p.Renames[i].Text))
	}
	if p.Empty {
		if !p.Complete() && checked {
			fmt.Fprintln(a.io.Out, "no step leads to the spec")
		} else if changed {
			fmt.Fprintln(a.io.Out, "no changes on the node, only to the spec")
		} else {
			fmt.Fprintln(a.io.Out, "no changes")
		}
		return
	}
	disturbs := "disturbs nothing in use"
	if len(p.Disturbs) > 0 {
		disturbs = "disturbs: " + printable(strings.Join(p.Disturbs, ", "))
	}
	if p.EstimatedSeconds >= 0.5 {
		disturbs += fmt.Sprintf("; about %.0f s", p.EstimatedSeconds)
	}
	if !checked && !p.Observe {
		fmt.Fprintf(a.io.Out, "%s; %s\n", text.Count(len(p.Steps), "step"), disturbs)
		return
	}
	if p.Observe {
		fmt.Fprintf(a.io.Out, "%s, not carried out because the spec has 'enforce: observe':\n", text.Count(len(p.Steps), "step"))
	} else {
		fmt.Fprintf(a.io.Out, "%s:\n", text.Count(len(p.Steps), "step"))
	}
	a.steps(p.Steps, a.gpuNames(ctx, p.Steps))
	fmt.Fprintln(a.io.Out, disturbs)
}

// steps lists steps with their reasons, in one column if the texts are short enough.
func (a *app) steps(steps []api.PlanStep, names gpuNames) {
	const wide = 72
	lines, column := make([]string, len(steps)), 0
	for i, s := range steps {
		lines[i] = "  " + names.prefix(s.GPU) + printable(s.Text)
		if s.EstimatedSeconds >= 0.1 {
			lines[i] += fmt.Sprintf("  (about %.1f s)", s.EstimatedSeconds)
		}
		if s.Irreversible != "" {
			lines[i] += "  (cannot be undone)"
		}
		if n := utf8.RuneCountInString(lines[i]); n <= wide {
			column = max(column, n)
		}
	}
	for i, s := range steps {
		if s.Reason != "" {
			lines[i] += strings.Repeat(" ", max(0, column-utf8.RuneCountInString(lines[i]))) + "  # " + printable(s.Reason)
		}
		fmt.Fprintln(a.io.Out, lines[i])
	}
}

// gpuNames maps the UUIDs of GPUs to names for people: their current indices.
type gpuNames struct {
	byUUID map[string]string
	width  int // of the widest prefix; 0 when no step is about a GPU
}

// gpuNames queries the indices; a GPU without one keeps the first part of its UUID.
func (a *app) gpuNames(ctx context.Context, steps []api.PlanStep) gpuNames {
	n := gpuNames{byUUID: map[string]string{}}
	for _, s := range steps {
		if s.GPU != "" {
			n.byUUID[s.GPU] = shortUUID(s.GPU)
		}
	}
	if len(n.byUUID) == 0 {
		return n
	}
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	if s, err := a.client.Status(ctx); err == nil {
		for i := range s.GPUs {
			if _, ok := n.byUUID[s.GPUs[i].UUID]; ok {
				n.byUUID[s.GPUs[i].UUID] = gpuName(s.GPUs[i].Index, s.GPUs[i].UUID)
			}
		}
	} // Otherwise the UUIDs are enough: a plan does not wait for names.
	n.width = len(hostPrefix)
	for _, name := range n.byUUID {
		n.width = max(n.width, len(name))
	}
	return n
}

// hostPrefix is the prefix of a step without a GPU.
const hostPrefix = "host"

func (n gpuNames) prefix(gpu string) string {
	if n.width == 0 {
		return ""
	}
	name := hostPrefix
	if gpu != "" {
		name = n.byUUID[gpu]
		if name == "" {
			name = shortUUID(gpu)
		}
	}
	return fmt.Sprintf("%-*s  ", n.width, name)
}

// diff prints the differences with the lines around them.
func (a *app) diff(d *api.Diff) {
	fmt.Fprint(a.io.Out, spec.Diff(d.Before, d.After))
}

func (a *app) getCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get", Short: "Print the spec in force", Args: noArgs,
		Example: "  gpushare get > node.yaml   # its 'base:' makes apply refuse if another spec is in force by then",
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := a.client.Spec(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct {
					SchemaVersion int `json:"schema_version"`
					*api.SpecDocument
				}{1, doc})
			}
			fmt.Fprint(a.io.Out, doc.YAML)
			return nil
		},
	}
}
