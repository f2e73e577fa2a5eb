package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain LEASE|TENANT",
		Short: "Show what is enforced, by what, and what is not and why",
		Args:  exactArgs(1, "a lease or a tenant"),
		Long: `Explain reads back the restrictions of a lease or a tenant: devices, GPU memory and
time, host limits. What is not enforced is listed with the reason.`,
		Example:           "  gpushare explain vision-dev-3kq6\n  gpushare explain vision",
		ValidArgsFunction: a.completeFirst(func(s *api.Status) []string { return append(leasesOf(s), tenantsOf(s)...) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			var e *api.Explanation
			err := a.withLease(cmd.Context(), args[0], false, func(id string) (err error) {
				e, err = a.client.Explain(cmd.Context(), id)
				return err
			})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(e)
			}
			fmt.Fprintf(a.io.Out, "%s: %s\n\n", printable(e.Name), printable(e.Text))
			a.rules(e.Rules)
			for _, r := range e.Rules {
				if r.Enforced && r.Accuracy != "" {
					fmt.Fprintf(a.io.Out, "\n%s is enforced %s\n", r.What, printable(r.Accuracy))
				}
			}
			return nil
		},
	}
}

// rules prints what is enforced and what is not.
func (a *app) rules(rules []api.Rule) {
	rows := [][]string{{"RESTRICTION", "ENFORCED", "LIMIT", "BY, OR WHY NOT"}}
	for _, r := range rules {
		row := []string{r.What, "no", dash(r.Desired), r.Reason}
		if r.Enforced {
			row[1], row[3] = "yes", r.By
		} else if r.Advisory {
			row[1] = "advisory"
		}
		rows = append(rows, row)
	}
	a.table(rows)
}
