package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

// migConvert and migRemove settle what becomes of instances that others made.
func (a *app) migImport() *cobra.Command {
	return a.changeOwnership(ownershipChange{
		use: "import", short: "Let gpushare manage MIG instances that it did not create",
		long: `Import adds existing instances to those that gpushare manages. They are not changed:
tenants get leases on them, and after a boot they are created again. They stay until
their capacity is needed or 'gpushare mig remove' removes them. An instance without a
compute instance gets one. START is the first memory slice of the instance, as
'gpushare mig list' shows it.`,
		nothing: "no changes: gpushare already manages them", done: "gpushare manages them now",
	}, func(ctx context.Context, r api.InstancesRequest, check bool) (*api.ApplyResult, error) {
		return a.client.ImportInstances(ctx, r, check)
	})
}

func (a *app) migRemove() *cobra.Command {
	return a.changeOwnership(ownershipChange{
		use:   "remove",
		short: "Remove idle MIG instances that no layout contains",
		long: `Remove destroys instances that are idle and in no layout of the spec: instances that
gpushare did not create, instances without a compute instance, imported instances, and
dynamic ones. If one is in use, the command names its processes and changes nothing.
START is the first memory slice of the instance, as 'gpushare mig list' shows it.

An instance of several compute instances that the driver reports without placement and
UUID could not be created again if a later step fails: it needs --force.`,
		nothing: "no changes",
		done:    "they are removed",
		force:   "also remove instances that could not be created again; no process is stopped",
	}, func(ctx context.Context, r api.InstancesRequest, check bool) (*api.ApplyResult, error) {
		return a.client.RemoveInstances(ctx, r, check)
	})
}

// ownershipChange has the texts of one of the two commands.
type ownershipChange struct{ use, short, long, nothing, done, force string }

func (a *app) changeOwnership(
	s ownershipChange, send func(context.Context, api.InstancesRequest, bool) (*api.ApplyResult, error),
) *cobra.Command {
	var check, force bool
	c := &cobra.Command{
		Use: s.use + " GPU START…", Short: s.short, Long: s.long,
		Example:           "  gpushare mig " + s.use + " 0 4 --check\n  gpushare mig " + s.use + " 0 4",
		Args:              atLeast(2, "a GPU's index or UUID, and the first memory slice of each instance"),
		ValidArgsFunction: a.completeFirst(gpusOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r := api.InstancesRequest{GPU: id, Force: force}
			for _, arg := range args[1:] {
				n, err := strconv.ParseUint(arg, 10, 32)
				if err != nil {
					return usageError{err: fmt.Errorf("cannot read %q as a memory slice: write its number, as in 4", arg)}
				}
				r.Start = append(r.Start, uint32(n))
			}
			res, err := send(cmd.Context(), r, check)
			if err != nil {
				return err
			}
			if a.json {
				return a.applyJSON(cmd, res, false, leftHeld)
			}
			switch {
			case !res.Changed:
				fmt.Fprintln(a.io.Out, s.nothing)
				return nil
			case res.Plan.Empty && check:
				fmt.Fprintln(a.io.Out, "only the record would change: no step is needed")
				return nil
			case res.Plan.Empty:
				fmt.Fprintln(a.io.Out, "done: "+s.done)
				return nil
			}
			a.plan(cmd.Context(), &res.Plan, check, false)
			if check || res.Operation == nil {
				return nil
			}
			return a.follow(cmd.Context(), res.Operation)
		},
	}
	c.Flags().BoolVar(&check, "check", false, "show the plan and change nothing")
	if s.force != "" {
		c.Flags().BoolVar(&force, "force", false, s.force)
	}
	return c
}
