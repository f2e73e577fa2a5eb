package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check the node and say what is wrong or weaker than it could be", Args: noArgs,
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
				for _, c := range d.Checks {
					fmt.Fprintf(a.io.Out, "%-4s  %s: %s\n", c.Result, c.Name, c.Message)
					if c.Hint != "" {
						fmt.Fprintf(a.io.Out, "      %s\n", c.Hint)
					}
				}
			}
			if failed {
				return &exitError{code: api.ExitDegraded}
			}
			return nil
		},
	}
}

func (a *app) eventsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "events", Short: "Follow what happens on the node", Args: noArgs,
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
				fmt.Fprintf(a.io.Out, "%s  %-16s %-20s %s\n", e.At.Local().Format(time.TimeOnly), e.Kind, where, e.Message)
			})
		},
	}
}
