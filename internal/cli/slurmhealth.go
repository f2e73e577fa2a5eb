package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/slurm"
)

func (a *app) slurmHealthCommand() *cobra.Command {
	var d draining
	c := &cobra.Command{
		Use:   "health [flags]",
		Short: "Drain the node in Slurm if a GPU is unusable, as Slurm's HealthCheckProgram",
		Args:  noArgs,
		Long: `Health is what the HealthCheckProgram of Slurm runs: 'gpushare slurm install' writes it. If a GPU that Slurm
places on is lost, stuck, unreadable or unhealthy, it drains the node with the reason. Jobs that run there go on. A node that
is drained is left as it is, and none is resumed: that is the administrator's, when the GPU is well.

What an administrator did is no reason: a cordon, a change, maintenance. If gpushared does not answer within 2 s
(GPUSHARE_PROLOG_SECONDS), nothing is known, and nothing is done. The exit code is 0; 6 if the node should be
drained and scontrol did not do it.`,
		Example: "  gpushare slurm health\n  gpushare slurm health --node gpu01",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.node == "" {
				d.node = a.getenv("SLURMD_NODENAME")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), prologWaits*a.prologLimit())
			defer cancel()
			return a.slurmHealth(ctx, &d)
		},
	}
	c.Flags().StringVar(&d.node, "node", "", "Slurm's name of this node, its NodeName (default the host's name without its domain)")
	return c
}

// slurmHealth drains the node if a GPU is unusable.
func (a *app) slurmHealth(ctx context.Context, d *draining) error {
	limit := a.prologLimit()
	status, err := a.statusWithin(ctx, limit)
	if err != nil {
		a.toJournal("gpushare-health", "the health of the GPUs is not known: "+err.Error())
		return nil
	}
	unusable := slurm.UnusableGPUs(status)
	if len(unusable) == 0 {
		return nil
	}
	reason := "gpushare: " + strings.Join(strings.Fields(printable(strings.Join(unusable, "; "))), " ")
	name, err := a.slurmName(ctx, d)
	if err == nil {
		text, _ := a.slurmProgramWithin(ctx, limit, "scontrol", "-o", "show", "node", name)
		if n, ok := slurm.ParseNode(text); ok && n.Name == name && n.Drained() {
			return nil
		}
		_, err = a.slurmProgramWithin(ctx, limit, "scontrol", "update", "nodename="+name, "state=drain", "reason="+reason)
	}
	if err != nil {
		a.toJournal("gpushare-health", fmt.Sprintf("the node is not drained: %v; %s", err, reason))
		return &exitError{code: api.ExitDegraded, err: fmt.Errorf("cannot drain the node in Slurm: %w; %s", err, reason)}
	}
	a.toJournal("gpushare-health", name+" is drained: "+reason)
	return nil
}
