package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/internal/spec"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "The spec file and the daemon's settings",
		&cobra.Command{
			Use: "validate FILE", Short: "Check a spec without a daemon: keys, quantities, names", Args: exactArgs(1, "a spec file, or - for standard input"),
			RunE: func(_ *cobra.Command, args []string) error {
				doc, err := a.document(args[0])
				if err != nil {
					return err
				}
				s, err := spec.Decode(args[0], doc)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(s)
				}
				fmt.Fprintf(a.io.Out, "%s: ok: %s, %s\n", args[0], plural(len(s.GPUs), "set")+" of GPUs", plural(len(s.Tenants), "tenant"))
				return nil
			},
		},
		&cobra.Command{
			Use: "reload", Short: "Make the daemon read its settings again", Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return a.client.Reload(cmd.Context()) },
		})
}
