package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

const operationArgument = "the id of an operation"

func (a *app) operationCommand() *cobra.Command {
	return group(
		"operation", "Operations: changes of the node that run or have ended", a.operationList(), a.operationShow(), a.operationWait(),
	)
}

func (a *app) operationList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the changes that run and the last that ended: who, what, when",
		Args:  noArgs,
		Long: `List shows the running changes and the last 64, the newest last. GENERATION is that of the
spec that a change puts in force, or that it restores. A restart of the daemon ends the list;
a change that was open then is resumed and listed again.`,
		Example: "  gpushare operation list\n  gpushare operation list --json | jq -r '.operations[] | select(.state == \"running\") | .id'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := a.client.Operations(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(l)
			}
			a.operationTable(l.Operations)
			return nil
		},
	}
}

func (a *app) operationTable(all []api.OperationSummary) {
	if len(all) == 0 {
		fmt.Fprintln(a.io.Out, "no operation since the daemon was started: 'gpushare history' shows the specs that were applied")
		return
	}
	columns := []column{
		{head: "OPERATION"},
		{head: "KIND"},
		{head: "BY", min: 8},
		{head: "GENERATION"},
		{head: "STARTED"},
		{head: "DURATION"},
		{head: "STEPS"},
		{head: "STATE", min: 20},
	}
	rows := make([]line, len(all))
	for i := range all {
		o := &all[i]
		rows[i] = line{cells: []string{
			o.ID,
			o.Kind,
			o.By,
			strconv.FormatUint(o.Generation, 10),
			o.Started.Local().Format(time.DateTime),
			runtime(o.Started, o.Finished),
			fmt.Sprintf("%d/%d", o.StepsEnded, o.StepCount),
			operationState(o),
		}}
	}
	a.fit(columnsOf(a.io.Out), columns, rows)
}

// operationState is the state with its reason, or with the step that runs.
func operationState(o *api.OperationSummary) string {
	if o.Error != nil {
		return o.State + join(": ", o.Error.Message)
	}
	return o.State + join(": ", o.CurrentStep)
}

// runtime is for how long an operation runs, or ran.
func runtime(started time.Time, finished *time.Time) string {
	end := now()
	if finished != nil {
		end = *finished
	}
	return fmt.Sprintf("%.1f s", max(0, end.Sub(started).Seconds()))
}

func (a *app) operationShow() *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Short:             "Show one operation with its steps",
		Args:              exactArgs(1, operationArgument),
		ValidArgsFunction: a.completeOperations,
		Example:           "  gpushare operation show apply-7",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := a.operation(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct {
					SchemaVersion int `json:"schema_version"`
					*api.Operation
				}{1, o})
			}
			a.operationDetail(cmd.Context(), o)
			return nil
		},
	}
}

func (a *app) operationDetail(ctx context.Context, o *api.Operation) {
	rows := [][]string{
		{"operation", o.ID},
		{"kind", o.Kind},
		{"state", o.State},
		{"by", o.By},
		{"generation", strconv.FormatUint(o.Plan.Generation, 10)},
		{"started", o.Started.Local().Format(time.DateTime)},
		{"duration", runtime(o.Started, o.Finished)},
	}
	if o.Finished == nil {
		rows[len(rows)-1][0] = "runs for"
	}
	if o.Error != nil {
		rows = append(rows, []string{"error", o.Error.Message})
		if o.Error.Hint != "" {
			rows = append(rows, []string{"hint", o.Error.Hint})
		}
	}
	a.table(rows)
	names, width := a.gpuNames(ctx, o.Plan.Steps), 0
	for i := range o.Plan.Steps {
		width = max(width, len(o.Plan.Steps[i].State))
	}
	for i := range o.Plan.Steps {
		fmt.Fprintln(a.io.Out, a.stepLine(&o.Plan.Steps[i], names, width))
	}
}

func (a *app) operationWait() *cobra.Command {
	var limit *api.Duration
	c := &cobra.Command{
		Use:               "wait ID",
		Short:             "Wait until an operation has ended, and show its progress",
		Args:              exactArgs(1, operationArgument),
		ValidArgsFunction: a.completeOperations,
		Long: `Wait prints the steps of a change as they end, as apply does, and exits with the code that
apply would: 0 if everything was reached, 6 if a GPU is held. An interrupt ends the wait, not
the change. If --timeout is over first, it exits with 5.`,
		Example: "  gpushare apply -f node.yaml --no-wait\n  gpushare operation wait apply-7 --timeout 10m",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), waitLimit(limit))
			defer cancel()
			id := args[0]
			o, err := a.operation(ctx, id)
			if err == nil {
				id = o.ID
				err = a.follow(ctx, o)
			}
			if limit != nil && errors.Is(err, context.DeadlineExceeded) {
				return &api.Error{
					Kind: api.KindConflict, Message: fmt.Sprintf("%s still runs after %s", id, limit), Operation: id,
					Hint: fmt.Sprintf("it continues; 'gpushare operation show %s' shows its steps", id),
				}
			}
			return err
		},
	}
	timeoutFlag(c, &limit, "wait for its end")
	return c
}

// operation reads an operation by its id, or the beginning of that.
func (a *app) operation(ctx context.Context, word string) (o *api.Operation, err error) {
	err = a.withOperation(ctx, word, func(id string) (err error) {
		o, err = a.client.Operation(ctx, id, 0, 0)
		return err
	})
	return o, err
}

// completeOperations offers the ids of operations, the newest first.
func (a *app) completeOperations(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), nameTimeout)
	defer cancel()
	l, err := a.client.Operations(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for i := len(l.Operations) - 1; i >= 0; i-- {
		if o := &l.Operations[i]; strings.HasPrefix(o.ID, typed) {
			out = append(out, printable(o.ID)+"\t"+describe(o.Kind+" by "+o.By+", "+operationState(o)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
