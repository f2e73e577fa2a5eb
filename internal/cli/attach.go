package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) leaseAttach() *cobra.Command {
	var r api.AttachRequest
	var export bool
	var engine engineFlags
	c := &cobra.Command{
		Use:   "attach (--pid N | --unit U | --cgroup PATH | --key KEY [--cgroup PATH]) [-t TENANT] [--grant NAME] [-- NAME]",
		Short: "Give a running process, unit or cgroup a lease",
		Long: `Attach is for job prologs, notebook hubs and scripts. The processes stay in their
cgroup, and their use of the GPU counts for the grant. gpushare sets no device rules or
limits there; the output lists what is not enforced. The lease ends with the last
process, or with 'gpushare lease release', which leaves the processes running.

Members may attach their own processes, and cgroups that were delegated to them, such as
those of 'systemd-run --user', unless the spec has 'isolation.attach: admin'.
Administrators may attach anything, units too.

With --key it is for engines: schedulers that chose the place, as in a Prolog of Slurm.
The same key is the same lease, also after a restart of gpushared, and for an hour after
its end no new one. The cgroup may come later: the lease has its place, and is bound when
the cgroup has a process. It needs root or a member of 'node.engine' in the spec.`,
		Example: `  gpushare lease attach -t vision --grant dev --cgroup /system.slice/node1_slurmstepd.scope/job_42 -- job-42
  gpushare lease attach -t vision --grant serve --unit jupyter-vision.service
  eval "$(gpushare lease attach --pid $$ --grant dev --export)"
  gpushare lease attach --key slurm:lab:42:0 --user alice -t vision --grant dev --gpu 1 --gpu-memory 12GiB`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{err: fmt.Errorf("a lease has one name, got %q", args)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				r.Name = args[0]
			}
			if err := engine.check(&r); err != nil {
				return err
			}
			if n := count(r.PID != 0) + count(r.Unit != "") + count(r.Cgroup != ""); n != 1 && engine.key == "" {
				return usageError{err: errors.New("nothing to attach: give one of --pid, --unit and --cgroup")}
			}
			var err error
			if r.GPUs, err = a.gpuIDs(cmd.Context(), r.GPUs); err != nil {
				return err
			}
			if engine.key != "" {
				return a.attachEngine(cmd, &engine, &r, export)
			}
			granted, err := a.client.Attach(cmd.Context(), r, a.waiting())
			if err != nil {
				return err
			}
			return a.attached(granted, export)
		},
	}
	f := c.Flags()
	f.IntVar(&r.PID, "pid", 0, "a process and its descendants")
	f.StringVar(&r.Unit, "unit", "", "all processes of a systemd unit")
	f.StringVar(&r.Cgroup, "cgroup", "", "all processes in a cgroup and below it")
	f.StringVarP(&r.Tenant, "tenant", "t", "", "the tenant to attach for (default: the one you are a member of)")
	f.StringVar(&r.Grant, "grant", "", "the grant to use (default: selected automatically)")
	f.StringVar(&r.Kind, "kind", "", "use a grant of this kind: mig:PROFILE, exclusive, timeslice or mps")
	placeFlags(c, &r.GPUs, &r.MaxTime)
	engine.add(c)
	waitFlag(c, &r.Wait, "wait in the queue if nothing is free")
	f.BoolVar(&export, "export", false, "print the environment as lines for a shell, everything else on standard error")
	a.completeFlag(c, "tenant", func(s *api.Status) []string { return tenantsOf(s) })
	a.completeFlag(c, "grant", func(s *api.Status) []string { return grantsOf(s, r.Tenant) })
	a.completeFlag(c, "kind", kindsOf)
	a.completeFlag(c, "gpu", gpusOf)
	return c
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// attached prints a lease that was attached: its id, its environment, and what is not enforced.
func (a *app) attached(g *api.LeaseGrant, export bool) error {
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int `json:"schema_version"`
			*api.LeaseGrant
		}{1, g})
	}
	notes := a.io.Out
	if export {
		notes = a.io.Err
	}
	does := "attached"
	if e := g.Lease.Engine; e != nil && !e.Bound {
		does = "registered, and waits for processes of"
	}
	fmt.Fprintf(notes, "lease %s: %s %s\n", g.Lease.ID, does, printable(strings.Join(g.Lease.Command, " ")))
	if g.Selected != "" {
		fmt.Fprintln(notes, sentence(g.Selected))
	}
	for _, w := range g.Warnings {
		fmt.Fprintln(notes, "warning: "+sentence(w))
	}
	for _, m := range g.Lease.Isolation.NotEnforced {
		fmt.Fprintln(notes, "not enforced: "+sentence(m))
	}
	if export {
		a.export(g.Environment, g.Unset)
		return nil
	}
	for _, kv := range (&api.Environment{Environment: g.Environment}).Over(nil) {
		fmt.Fprintln(a.io.Out, "  "+printable(kv))
	}
	return nil
}

func (a *app) leaseRelease() *cobra.Command {
	var missing bool
	var key string
	c := &cobra.Command{
		Use:               "release (ID | --key KEY)",
		Short:             "End an attached lease and leave its processes running",
		Args:              idOrKey(&key),
		ValidArgsFunction: a.completeFirst(leasesOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key != "" {
				return a.releaseKey(cmd, key, missing)
			}
			released := args[0]
			err := a.withLease(cmd.Context(), args[0], false, func(id string) error {
				released = id
				return a.client.ReleaseLease(cmd.Context(), id)
			})
			if missing && isNotFound(err) {
				err = nil
			}
			if err != nil {
				return err
			}
			return a.released(released)
		},
	}
	c.Flags().StringVar(&key, "key", "", "the lease of this key; it is no error if it has ended lately")
	c.Flags().BoolVar(&missing, "missing-ok", false, "succeed if the lease already ended with its last process")
	return c
}

// idOrKey takes one lease by its id, or none with --key.
func idOrKey(key *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *key == "" {
			return exactArgs(1, "the id of a lease")(cmd, args)
		}
		return noArgs(cmd, args)
	}
}

func (a *app) released(id string) error {
	if a.json {
		return a.printJSON(map[string]any{"schema_version": 1, "released": id})
	}
	fmt.Fprintf(a.io.Out, "released %s\n", id)
	return nil
}
