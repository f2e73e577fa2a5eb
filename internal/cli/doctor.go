package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check the node and say what is wrong or weaker than it could be", Args: noArgs,
		Long:    "Doctor looks at the driver, the walls, the state and the tenants. It changes nothing, and exits with 6 when a check failed.",
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

// checks prints findings, a hint that several in a row share only once, and the count of those that are not well.
func (a *app) checks(checks []api.Check) {
	warned, failed := 0, 0
	for i, c := range checks {
		switch c.Result {
		case "warn":
			warned++
		case "fail":
			failed++
		}
		fmt.Fprintf(a.io.Out, "%s%s  %s: %s\n", a.verdict(c.Result), strings.Repeat(" ", max(0, len("fail")-len(c.Result))), c.Name, sentence(c.Message))
		shared := i+1 < len(checks) && checks[i+1].Name == c.Name && checks[i+1].Result == c.Result && checks[i+1].Hint == c.Hint
		if c.Hint != "" && !shared {
			fmt.Fprintf(a.io.Out, "      %s\n", sentence(c.Hint))
		}
	}
	switch {
	case failed > 0 && warned > 0:
		fmt.Fprintf(a.io.Out, "%s failed, %s\n", text.Count(failed, "check"), text.Count(warned, "warning"))
	case failed > 0:
		fmt.Fprintf(a.io.Out, "%s failed\n", text.Count(failed, "check"))
	case warned > 0:
		fmt.Fprintf(a.io.Out, "nothing failed, %s\n", text.Count(warned, "warning"))
	default:
		fmt.Fprintln(a.io.Out, "all is well")
	}
}

func (a *app) verdict(result string) string {
	if result == "ok" {
		return a.paint(green, result)
	}
	return a.state(result)
}

func (a *app) eventsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "events", Short: "Follow what happens on the node", Args: noArgs,
		Long:    "Events prints what happens from now on, a line each, until it is interrupted; with --json one object a line.",
		Example: "  gpushare events\n  gpushare events --json | jq -r 'select(.kind == \"gpu.held\") | .message'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := json.NewEncoder(a.io.Out)
			return a.client.Events(cmd.Context(), func(e api.Event) {
				if a.json {
					_ = out.Encode(e) // A closed standard output ends the process by SIGPIPE.
					return
				}
				where := e.Lease
				if where == "" {
					where = shortUUID(e.GPU)
				}
				if where == "" {
					where = e.Tenant
				}
				fmt.Fprintf(a.io.Out, "%s  %-16s %-20s %s\n", e.At.Local().Format(time.TimeOnly), printable(e.Kind), printable(dash(where)), printable(e.Message))
			})
		},
	}
}
