package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) specCommand() *cobra.Command {
	return group("spec", "Spec files",
		&cobra.Command{
			Use: "validate FILE", Short: "Check a spec without a daemon: keys, quantities, names", Args: exactArgs(1, "a spec file, or - for standard input"),
			Example:           "  gpushare spec validate node.yaml\n  ./make-spec | gpushare spec validate -",
			ValidArgsFunction: yamlFiles,
			RunE: func(_ *cobra.Command, args []string) error {
				doc, err := a.document(args[0])
				if err != nil {
					return err
				}
				file := args[0]
				if file == "-" {
					file = "standard input"
				}
				s, err := spec.Decode(file, doc)
				if err != nil {
					return err
				}
				if err := spec.CheckReserved(file, doc, s); err != nil {
					return err
				}
				if a.json {
					return a.printJSON(s)
				}
				fmt.Fprintf(a.io.Out, "%s: ok: %s of GPUs, %s\n", file, text.Count(len(s.GPUs), "set"), text.Count(len(s.Tenants), "tenant"))
				return nil
			},
		})
}

func (a *app) configCommand() *cobra.Command {
	return group("config", "The daemon's settings",
		&cobra.Command{
			Use: "reload", Short: "Make the daemon read its settings again", Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := a.client.Reload(cmd.Context()); err != nil {
					return err
				}
				if a.json {
					return a.printJSON(map[string]any{"schema_version": 1, "reloaded": true})
				}
				fmt.Fprintln(a.io.Out, "the daemon read its settings again")
				return nil
			},
		})
}
