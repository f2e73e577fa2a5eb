package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) specCommand() *cobra.Command {
	return group("spec", "Spec files", a.schemaCommand(),
		&cobra.Command{
			Use:               "validate FILE",
			Short:             "Check a spec without a daemon: keys, quantities, names",
			Args:              exactArgs(1, "a spec file, or - for standard input"),
			Example:           "  gpushare spec validate node.yaml\n  ./make-spec | gpushare spec validate -",
			ValidArgsFunction: yamlFiles,
			RunE: func(cmd *cobra.Command, args []string) error {
				doc, err := a.document(cmd.Context(), args[0])
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
				for _, over := range s.Oversubscribed() {
					fmt.Fprintf(a.io.Err, "warning: %s\n", sentence(over))
				}
				if a.json {
					return a.printJSON(s)
				}
				fmt.Fprintf(
					a.io.Out, "%s: ok: %s of GPUs, %s\n", file, text.Count(len(s.GPUs), "set"), text.Count(len(s.Tenants), "tenant"),
				)
				return nil
			},
		})
}

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the spec, for editors and other tools",
		Args:  noArgs,
		Long: `Schema prints the JSON Schema of the spec: its keys, types, words and ranges, each with its
meaning. Editors complete and check a spec with it. 'gpushare spec validate' also finds what a
schema cannot express.`,
		Example: "  gpushare spec schema > spec.schema.json   # then, as the first line of a spec:\n  # yaml-language-server: $schema=spec.schema.json",
		RunE: func(*cobra.Command, []string) error {
			_, err := a.io.Out.Write(gpushare.SpecSchema)
			return err
		},
	}
}

func (a *app) configCommand() *cobra.Command {
	return group("config", "The daemon's settings",
		&cobra.Command{
			Use: "reload", Short: "Make the daemon read its settings again, and apply spec_file", Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				out, err := a.client.Reloaded(cmd.Context())
				if err != nil {
					return err
				}
				if out.SchemaVersion = 1; out.NeedsRestart == nil {
					out.NeedsRestart = []string{} // an earlier daemon writes null
				}
				if a.json {
					return a.printJSON(out)
				}
				fmt.Fprintln(a.io.Out, "the daemon read its settings again")
				for _, s := range out.NeedsRestart {
					fmt.Fprintf(a.io.Err, "warning: %s is read at start only: restart the daemon\n", printable(s))
				}
				applied := out.Applied
				if applied == nil || !applied.Changed {
					return nil
				}
				a.plan(cmd.Context(), &applied.Plan, false, true)
				if applied.Operation != nil {
					return a.follow(cmd.Context(), applied.Operation)
				}
				fmt.Fprintf(a.io.Out, "done: generation %d is in force\n", applied.Generation)
				return nil
			},
		})
}
