package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) metricsCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "metrics [flags]", Short: "Print metrics for Prometheus, or write them for node_exporter", Args: noArgs,
		Long: `Metrics prints what the status has in the text format of Prometheus. Members see their own
tenants. With --textfile it replaces a file in the directory of node_exporter's textfile
collector at once, so that no scrape reads a part of it. A link, a pipe or a device at the
name is refused.`,
		Example: "  gpushare metrics\n  gpushare metrics --textfile /var/lib/prometheus/node-exporter/gpushare.prom",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case a.json:
				return usageError{
					err:  errors.New("cannot print metrics as JSON: their format is that of Prometheus"),
					hint: "'gpushare status --json' has the values as JSON",
				}
			case file == "" && cmd.Flags().Changed("textfile"), file != "" && !strings.HasSuffix(file, ".prom"):
				return usageError{
					err:  fmt.Errorf("cannot write metrics to %q: node_exporter reads only files that end in .prom", file),
					hint: "name it gpushare.prom",
				}
			}
			b, err := a.client.Metrics(cmd.Context())
			if err != nil {
				return err
			}
			if file != "" {
				// node_exporter is another user, and does not read a name with this prefix.
				return replaceFile(file, ".gpushare-metrics-", b, 0o644)
			}
			if _, err := a.io.Out.Write(b); err != nil {
				return fmt.Errorf("cannot print: %w", err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&file, "textfile", "", "write to this file (NAME.prom) instead of printing, at once")
	return c
}
