package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

// migAdopt and migRemove settle what becomes of instances that others made.
func (a *app) migAdopt() *cobra.Command {
	return a.settling(settling{
		use: "adopt", short: "Say that MIG instances that others made are gpushare's",
		long: `Adopt takes instances over that gpushare did not make, as they are: tenants get leases on
them, and they come back after a boot. They stay until their room is needed or 'gpushare
mig remove' says so. One without a compute instance is completed. START is the memory
slice at which the instance begins, as 'gpushare mig list' shows it.`,
		nothing: "nothing to do: they are gpushare's already", done: "they are gpushare's now",
	}, func(ctx context.Context, r api.InstancesRequest, check bool) (*api.ApplyResult, error) {
		return a.client.AdoptInstances(ctx, r, check)
	})
}

func (a *app) migRemove() *cobra.Command {
	return a.settling(settling{
		use: "remove", short: "Take away idle MIG instances that no layout asks for",
		long: `Remove destroys instances that nobody uses and no layout in the spec asks for: those that
others made, those without a compute instance, and those that were adopted or made on
demand. Who uses one is named, and nothing is done. START is the memory slice at which
the instance begins, as 'gpushare mig list' shows it.`,
		nothing: "no changes", done: "they are gone",
	}, func(ctx context.Context, r api.InstancesRequest, check bool) (*api.ApplyResult, error) {
		return a.client.RemoveInstances(ctx, r, check)
	})
}

// settling is what the two commands say.
type settling struct{ use, short, long, nothing, done string }

func (a *app) settling(s settling, ask func(context.Context, api.InstancesRequest, bool) (*api.ApplyResult, error)) *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use: s.use + " GPU START…", Short: s.short, Long: s.long,
		Example:           "  gpushare mig " + s.use + " 0 4 --check\n  gpushare mig " + s.use + " 0 4",
		Args:              atLeast(2, "a GPU's index or UUID, and where each instance begins"),
		ValidArgsFunction: a.completeFirst(gpusOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := api.InstancesRequest{GPU: args[0]}
			for _, arg := range args[1:] {
				n, err := strconv.ParseUint(arg, 10, 32)
				if err != nil {
					return usageError{err: fmt.Errorf("cannot read %q as a memory slice: write its number, as in 4", arg)}
				}
				r.Start = append(r.Start, uint32(n))
			}
			res, err := ask(cmd.Context(), r, check)
			if err != nil {
				return err
			}
			if a.json {
				return a.applyJSON(cmd, res, false)
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
			return a.follow(cmd, res.Operation)
		},
	}
	c.Flags().BoolVar(&check, "check", false, "only show what would be done")
	return c
}
