package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) conditionCommand() *cobra.Command {
	return group("condition", "Conditions: what is wrong or weaker than requested", a.conditionList(), a.conditionAck(), a.conditionUnack())
}

func (a *app) conditionList() *cobra.Command {
	c := a.listing("list", "List conditions, also those that are acknowledged", func(s *api.Status) any {
		out := struct {
			SchemaVersion int             `json:"schema_version"`
			Conditions    []api.Condition `json:"conditions"`
		}{1, s.Node.Conditions}
		if out.Conditions == nil {
			out.Conditions = []api.Condition{}
		}
		return out
	}, a.conditionTable)
	c.Example = "  gpushare condition list\n  gpushare condition list --json | jq '.conditions[] | select(.acknowledged == null)'"
	return c
}

func (a *app) conditionTable(s *api.Status) {
	if len(s.Node.Conditions) == 0 {
		fmt.Fprintln(a.io.Out, "no conditions")
		return
	}
	columns := []column{{head: "CONDITION"}, {head: "SINCE"}, {head: "ACKNOWLEDGED"}}
	var rows []line
	for i := range s.Node.Conditions {
		c := &s.Node.Conditions[i]
		rows = append(
			rows, line{[]string{c.ID, c.Since.Local().Format(time.DateTime), acknowledgement(c.Acknowledged)}, conditionText(s, c)},
		)
	}
	a.fit(columnsOf(a.io.Out), columns, rows)
}

// acknowledgement says who acknowledged a condition, and until when.
func acknowledgement(k *api.Acknowledgement) string {
	if k == nil {
		return "-"
	}
	out := "yes"
	if k.By != "" {
		out = "by " + k.By
	}
	if k.Until != nil {
		out += ", until " + k.Until.Local().Format(time.DateTime)
	}
	return out + join(": ", k.Reason)
}

func (a *app) conditionAck() *cobra.Command {
	var reason string
	var limit *api.Duration
	c := &cobra.Command{
		Use:               "ack ID",
		Short:             "Acknowledge a condition",
		Args:              exactArgs(1, "the id of a condition"),
		ValidArgsFunction: a.completeFirst(conditionsOf),
		Long: `Ack says that an administrator knows of a condition. The status shows it among the acknowledged
ones, 'gpushare status --exit-code' does not count it, and the check of 'gpushare doctor' that found
it passes, so that an alert on their exit codes ends. The acknowledgement ends with the condition,
or when its time is over: a condition that comes back is not acknowledged. A restart of the daemon
does not end it.`,
		Example: "  gpushare condition ack held-3f9a21c0\n  gpushare condition ack held-3f9a21c0 --for 2h --reason \"the board is replaced today\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCondition(cmd.Context(), args[0], func(id string) error {
				r, err := a.client.Acknowledge(cmd.Context(), id, api.AcknowledgeRequest{Reason: reason, For: limit})
				return a.acknowledged(r, err)
			})
		},
	}
	c.Flags().Var(duration{&limit}, "for", "acknowledge it for this time, as in 30m or 1d (default until it ends)")
	c.Flags().StringVar(&reason, "reason", "", "why, for those who read the list and the audit")
	return c
}

func (a *app) conditionUnack() *cobra.Command {
	return &cobra.Command{
		Use:               "unack ID",
		Short:             "End the acknowledgement of a condition",
		Args:              exactArgs(1, "the id of a condition"),
		ValidArgsFunction: a.completeFirst(conditionsOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCondition(cmd.Context(), args[0], func(id string) error {
				r, err := a.client.Unacknowledge(cmd.Context(), id)
				return a.acknowledged(r, err)
			})
		},
	}
}

// acknowledged prints what became of a request.
func (a *app) acknowledged(r *api.AcknowledgeResult, err error) error {
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(r)
	}
	c := &r.Condition
	switch {
	case c.Acknowledged != nil && c.Acknowledged.Until != nil:
		fmt.Fprintf(
			a.io.Out, "acknowledged %s until %s: %s\n", printable(c.ID), c.Acknowledged.Until.Local().Format(time.DateTime),
			sentence(c.Message),
		)
	case c.Acknowledged != nil:
		fmt.Fprintf(a.io.Out, "acknowledged %s until it ends: %s\n", printable(c.ID), sentence(c.Message))
	case r.Changed:
		fmt.Fprintf(a.io.Out, "%s is no longer acknowledged: %s\n", printable(c.ID), sentence(c.Message))
	default:
		fmt.Fprintf(a.io.Out, "%s was not acknowledged\n", printable(c.ID))
	}
	return nil
}

func conditionsOf(s *api.Status) []string {
	var out []string
	for i := range s.Node.Conditions {
		out = append(out, s.Node.Conditions[i].ID+"\t"+describe(s.Node.Conditions[i].Message))
	}
	return out
}
