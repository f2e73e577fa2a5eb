package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "doctor",
		Short:   "Check the node for problems and missing enforcement",
		Args:    noArgs,
		Long:    "Doctor checks the driver, the isolation, the saved state and the tenants. It changes nothing, and exits with 6 if a check failed.",
		Example: "  gpushare doctor\n  gpushare doctor --json | jq '.checks[] | select(.result != \"ok\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := a.client.Doctor(cmd.Context())
			if err != nil {
				return err
			}
			failed := false
			for _, c := range d.Checks {
				failed = failed || c.Result == "fail"
			}
			if a.json {
				if err := a.printJSON(d); err != nil {
					return err
				}
			} else {
				a.checks(d.Checks)
			}
			if failed {
				return &exitError{code: api.ExitDegraded}
			}
			return nil
		},
	}
}

// checks prints the checks, a hint of consecutive checks only once, and the counts of failures and warnings.
func (a *app) checks(checks []api.Check) {
	const below = "      " // the verdict
	warned, failed, width := 0, 0, columnsOf(a.io.Out)
	for i, c := range checks {
		switch c.Result {
		case "warn":
			warned++
		case "fail":
			failed++
		}
		a.hanging(
			a.verdict(c.Result)+strings.Repeat(" ", max(0, len("fail")-len(c.Result)))+"  ", below,
			c.Name+": "+sentence(c.Message)+acknowledgedCheck(c.Acknowledged), width,
		)
		shared := i+1 < len(checks) && checks[i+1].Name == c.Name && checks[i+1].Result == c.Result && checks[i+1].Hint == c.Hint
		if c.Hint != "" && !shared {
			a.hanging(below, below, sentence(c.Hint), width)
		}
	}
	switch {
	case failed > 0 && warned > 0:
		fmt.Fprintf(a.io.Out, "%s failed, %s\n", text.Count(failed, "check"), text.Count(warned, "warning"))
	case failed > 0:
		fmt.Fprintf(a.io.Out, "%s failed\n", text.Count(failed, "check"))
	case warned > 0:
		fmt.Fprintf(a.io.Out, "no check failed, %s\n", text.Count(warned, "warning"))
	default:
		fmt.Fprintln(a.io.Out, "all checks passed")
	}
}

// acknowledgedCheck says why a check passes that found a condition.
func acknowledgedCheck(k *api.Acknowledgement) string {
	if k == nil {
		return ""
	}
	return printable(" (acknowledged " + acknowledgement(k) + ")")
}

func (a *app) verdict(result string) string {
	if result == "ok" {
		return a.paint(green, result)
	}
	return a.state(result)
}
