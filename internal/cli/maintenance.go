package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// parkLimit is how long to wait for the driver to be parked after the last lease has ended: MPS and the worker end by then.
const parkLimit = time.Minute

// maintenanceFlags are the options of a maintenance that begins.
type maintenanceFlags struct {
	api.MaintenanceRequest
	wait *api.Duration // nil: it was not given
	stop bool
}

func (a *app) maintenanceCommand() *cobra.Command {
	var o maintenanceFlags
	c := &cobra.Command{
		Use:   "maintenance [on|off]",
		Short: "Take the node out of service, for example to replace the driver",
		Long: `Maintenance shows whether the node is in maintenance, the leases that still have GPUs, and after
'on --driver' the processes that keep the driver's modules from being unloaded.

'on' closes the whole node to new leases, and names those that run: they continue. Requests are
refused with the reason, or wait if they asked for that. It is no part of the spec, and lasts
over every apply, over a restart of the daemon and over a boot, until 'off'.

With --driver gpushare also stops using the driver when no lease has a GPU any more: MPS control
daemons and the NVML worker are stopped, and none is started until the end of the maintenance.
Then the driver's modules can be unloaded, unless other processes use them: these are named.
Meanwhile no spec is applied. Until the driver is parked, 'on --driver' exits with 6.

With --wait it waits for the leases, and exits with 6 if some are left. Only with --stop they are
stopped: SIGTERM, a grace period, then SIGKILL. Ctrl-C ends the wait, and not the maintenance.

'off' opens the node again. If the driver was parked it must answer: gpushare compares it with the
one before, uses it again, creates the MIG instances at their placements again, starts MPS, and
then takes leases. While the driver does not answer, the maintenance lasts.`,
		Example: "  gpushare maintenance\n  gpushare maintenance on --reason \"the fans are replaced\"\n  gpushare maintenance on --driver --wait 2h\n" +
			"  gpushare maintenance on --driver --stop --wait 10m\n  gpushare maintenance off",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.MaximumNArgs(1)(cmd, args); err != nil {
				return usageError{err: err}
			}
			if len(args) == 1 && args[0] != "on" && args[0] != "off" {
				return usageError{err: fmt.Errorf("%q is neither on nor off", args[0])}
			}
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"on", "off"}, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if given := changed(cmd, "driver", "reason", "stop", "wait"); given != "" && (len(args) == 0 || args[0] != "on") {
				return usageError{err: fmt.Errorf("--%s is an option of 'gpushare maintenance on'", given)}
			}
			switch {
			case len(args) == 0:
				return a.showMaintenance(cmd.Context())
			case args[0] == "on":
				return a.maintenanceOn(cmd.Context(), &o)
			}
			return a.maintenanceOff(cmd)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.Driver, "driver", false, "stop using the driver when no lease has a GPU any more, so that it can be replaced")
	f.StringVar(&o.Reason, "reason", "", "why, for those who are refused, and for the status and the audit")
	f.BoolVar(&o.stop, "stop", false, "stop the leases that have GPUs: SIGTERM, a grace period, then SIGKILL")
	waitFlag(c, &o.wait, "wait until no lease has a GPU")
	return c
}

// changed is the first of these flags that was given; empty if none was.
func changed(cmd *cobra.Command, names ...string) string {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return name
		}
	}
	return ""
}

func (a *app) showMaintenance(ctx context.Context) error {
	r, err := a.client.Maintenance(ctx)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(r)
	case r.Maintenance == nil:
		fmt.Fprintln(a.io.Out, "the node is not in maintenance: it takes leases")
	default:
		a.maintenance(r)
	}
	return nil
}

func (a *app) maintenanceOn(ctx context.Context, o *maintenanceFlags) error {
	r, err := a.client.BeginMaintenance(ctx, o.MaintenanceRequest)
	if err != nil {
		return err
	}
	if !a.json {
		fmt.Fprintln(a.io.Out, "the node is in maintenance: it takes no new lease")
	}
	waits := o.wait != nil || o.stop
	if waits {
		if _, err := a.drain(ctx, waitLimit(o.wait), o.stop, leasesWithGPUs); err != nil {
			return err
		}
	}
	changed := r.Changed
	if r, err = a.awaitParked(ctx); err != nil {
		return stillCordoned(err)
	}
	r.Changed = changed
	return a.maintained(r, waits)
}

// leasesWithGPUs are the leases in the way of a maintenance.
func leasesWithGPUs(s *api.Status) []api.Lease {
	var out []api.Lease
	for i := range s.Leases {
		if l := &s.Leases[i]; l.State != "queued" && len(l.GPUs) > 0 {
			out = append(out, *l)
		}
	}
	return out
}

// awaitParked reads the maintenance, and waits until the driver is parked if that was requested and no lease is in the way.
func (a *app) awaitParked(ctx context.Context) (*api.MaintenanceResult, error) {
	deadline := time.NewTimer(parkLimit)
	defer deadline.Stop()
	for {
		r, err := a.client.Maintenance(ctx)
		if err != nil || r.Maintenance == nil || !r.Maintenance.Driver || r.Maintenance.Parked || len(r.Leases) > 0 {
			return r, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline.C:
			return r, nil
		case <-time.After(drainPoll):
		}
	}
}

// maintained prints how a maintenance began. waited: the leases should have ended.
func (a *app) maintained(r *api.MaintenanceResult, waited bool) error {
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else if r.Maintenance != nil && (r.Maintenance.Parked || !r.Maintenance.Driver) {
		a.inTheWay(r)
	}
	late := &api.Error{Kind: api.KindDegraded, Hint: "the maintenance lasts; 'gpushare maintenance' shows what is in its way"}
	switch {
	case r.Maintenance == nil:
		return &api.Error{Kind: api.KindConflict, Message: "the maintenance was ended meanwhile", Hint: "'gpushare audit' shows by whom"}
	case r.Maintenance.Driver && !r.Maintenance.Parked:
		late.Message = "the driver is not parked yet: " + r.Waiting
		if len(r.Leases) > 0 {
			late.Message += ": " + strings.Join(r.Leases, ", ")
		}
		if len(r.Leases) > 0 {
			late.Hint = "it is parked when they have ended; 'gpushare maintenance on --driver --stop' stops them"
		}
		return late
	case waited && len(r.Leases) > 0:
		late.Message = text.Count(len(r.Leases), "lease") + " left: " + strings.Join(r.Leases, ", ")
		return late
	}
	return nil
}

// maintenance prints the maintenance and what is in its way.
func (a *app) maintenance(r *api.MaintenanceResult) {
	m := r.Maintenance
	fmt.Fprintf(
		a.io.Out, "the node is in maintenance by %s, since %s%s\n", printable(m.By), m.Since.Local().Format(time.DateTime),
		printable(join(": ", m.Reason)),
	)
	a.inTheWay(r)
}

// inTheWay prints the leases that run on, whether the driver is used, and by whom.
func (a *app) inTheWay(r *api.MaintenanceResult) {
	for _, l := range r.Leases {
		fmt.Fprintf(a.io.Out, "  %s runs on\n", printable(l))
	}
	m := r.Maintenance
	switch {
	case !m.Driver:
		if len(r.Leases) == 0 {
			fmt.Fprintln(a.io.Out, "no lease has a GPU")
		}
		return
	case !m.Parked:
		fmt.Fprintf(a.io.Out, "the driver is not parked yet%s\n", printable(join(": ", r.Waiting)))
	case len(r.DriverUsers) == 0 && !r.Unread:
		fmt.Fprintln(a.io.Out, "the driver is parked: nothing uses it, and its modules can be unloaded")
	case len(r.DriverUsers) == 0:
		fmt.Fprintln(a.io.Out, "the driver is parked: no user of it was found, but not every process could be read")
	default:
		fmt.Fprintf(
			a.io.Out, "the driver is parked, and %s still %s it:\n", text.Count(len(r.DriverUsers), "process"),
			useForm(len(r.DriverUsers)),
		)
	}
	if len(r.DriverUsers) == 0 || !m.Parked { // Before that they are the worker, MPS and the leases.
		return
	}
	rows := [][]string{{"PID", "COMMAND", "USER", "UNIT", "DEVICE NODES"}}
	units := []string{}
	for i := range r.DriverUsers {
		u := &r.DriverUsers[i]
		rows = append(rows, []string{fmt.Sprint(u.PID), dash(u.Command), dash(u.User), dash(u.Unit), strings.Join(u.Nodes, " ")})
		if strings.HasSuffix(u.Unit, ".service") && u.Lease == "" {
			units = append(units, u.Unit)
		}
	}
	a.table(rows)
	if len(units) > 0 {
		fmt.Fprintf(a.io.Out, "'systemctl stop %s' ends those of units\n", printable(strings.Join(units, " ")))
	}
}

// useForm is the form of "use" for a number of processes.
func useForm(n int) string {
	if n == 1 {
		return "uses"
	}
	return "use"
}

func (a *app) maintenanceOff(cmd *cobra.Command) error {
	r, err := a.client.EndMaintenance(cmd.Context())
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	if !r.Changed {
		fmt.Fprintln(a.io.Out, "the node was not in maintenance")
		return nil
	}
	if d := r.Replaced; d != nil {
		a.replaced(d)
	}
	fmt.Fprintln(a.io.Out, "the maintenance has ended: the node takes leases")
	if r.Operation == "" {
		return nil
	}
	op, err := a.client.Operation(cmd.Context(), r.Operation, 0, 0)
	if err != nil {
		return err
	}
	return a.follow(cmd.Context(), op)
}

// replaced prints what a maintenance changed.
func (a *app) replaced(d *api.ReplacedDriver) {
	switch d.Before {
	case d.After:
		fmt.Fprintf(a.io.Out, "the driver is %s, as before\n", printable(d.After))
	case "":
		fmt.Fprintf(a.io.Out, "the driver is %s; which one it was before is not known\n", printable(d.After))
	default:
		fmt.Fprintf(a.io.Out, "the driver is %s, and was %s\n", printable(d.After), printable(d.Before))
	}
	for _, id := range d.Missing {
		fmt.Fprintf(a.io.Out, "  %s is missing\n", printable(id))
	}
	for _, id := range d.Added {
		fmt.Fprintf(a.io.Out, "  %s is new\n", printable(id))
	}
}
