package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) leaseCommand() *cobra.Command {
	return group("lease", "Leases: the running uses of grants",
		a.listing("list", "List leases", func(s *api.Status) any {
			return struct {
				SchemaVersion int         `json:"schema_version"`
				Leases        []api.Lease `json:"leases"`
			}{1, s.Leases}
		}, func(s *api.Status) {
			if len(s.Leases) == 0 {
				fmt.Fprintln(a.io.Out, "no leases")
				return
			}
			a.leases(s.Leases)
		}),
		a.leaseShow(),
		a.leaseAttach(),
		a.leaseRelease(),
		&cobra.Command{Use: "stop ID", Short: "End a lease: SIGTERM, grace, then SIGKILL", Args: exactArgs(1, "the id of a lease"), ValidArgsFunction: a.completeFirst(leasesOf), RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.client.StopLease(cmd.Context(), args[0]); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"schema_version": 1, "stopped": args[0]})
			}
			fmt.Fprintf(a.io.Out, "%s is gone\n", args[0])
			return nil
		}})
}

func (a *app) leaseShow() *cobra.Command {
	return &cobra.Command{Use: "show ID", Short: "Show one lease: what it may use, what it uses, what is enforced", Args: exactArgs(1, "the id of a lease"), ValidArgsFunction: a.completeFirst(leasesOf), RunE: func(cmd *cobra.Command, args []string) error {
		s, err := a.client.Status(cmd.Context())
		if err != nil {
			return err
		}
		for i := range s.Leases {
			l := &s.Leases[i]
			if l.ID != args[0] {
				continue
			}
			if a.json {
				return a.printJSON(struct {
					SchemaVersion int `json:"schema_version"`
					*api.Lease
				}{1, l})
			}
			a.lease(l)
			return nil
		}
		return &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("there is no lease %q that you may see", args[0]), Hint: "'gpushare lease list' shows them"}
	}}
}

// lease prints one lease in full.
func (a *app) lease(l *api.Lease) {
	a.leases([]api.Lease{*l})
	fmt.Fprintln(a.io.Out)
	line := func(name, value string) { fmt.Fprintf(a.io.Out, "%-8s  %s\n", name, printable(value)) }
	line("grant", l.Tenant+"/"+l.Grant+" ("+l.Kind+")")
	line("command", strings.Join(l.Command, " "))
	line("devices", dash(strings.Join(l.Devices, " ")))
	if l.Started != nil {
		line("started", l.Started.Local().Format(time.DateTime))
	}
	if l.Ends != nil {
		line("ends", l.Ends.Local().Format(time.DateTime)+", when its time is up")
	}
	if l.Walls.Cgroup != "" {
		line("cgroup", l.Walls.Cgroup)
	}
	if l.Walls.Unit != "" {
		line("unit", l.Walls.Unit)
	}
	for _, m := range l.Walls.Missing {
		fmt.Fprintf(a.io.Out, "not enforced: %s\n", printable(m))
	}
	for _, n := range l.Notices {
		fmt.Fprintf(a.io.Out, "notice: %s\n", printable(n))
	}
}

func (a *app) leases(leases []api.Lease) {
	rows := [][]string{{"LEASE", "STATE", "USER", "PID", "ON", "GPU MEMORY", "SHARE", "COMMAND", ""}}
	for i := range leases {
		l := &leases[i]
		state := l.State
		if l.Memory != nil && l.Memory.Stage != "" {
			state += ", " + stage(l.Memory.Stage)
		}
		if l.Position > 0 {
			state = fmt.Sprintf("waiting, place %d", l.Position)
		}
		on := make([]string, 0, len(l.Devices))
		for _, d := range l.Devices {
			on = append(on, shortUUID(d))
		}
		rows = append(rows, []string{l.ID, state, dash(l.User), pid(l.PID), dash(strings.Join(on, " ")), leaseMemory(l.Memory), leaseShare(l.Share), command(l.Command), l.Waiting})
	}
	a.table(rows)
}

// stage says how far the memory of a lease is from being its end.
func stage(s string) string {
	switch s {
	case "notice":
		return "near its limit"
	case "over":
		return "over its limit"
	}
	return s
}

func leaseMemory(m *api.LeaseMemory) string {
	switch {
	case m == nil:
		return "-"
	case m.Limit == 0:
		return gib(m.Used)
	}
	return gib(m.Used) + " of " + gib(m.Limit)
}

// leaseShare shows what was promised beside what was seen.
func leaseShare(s *api.LeaseShare) string {
	if s == nil {
		return "-"
	}
	out := percent(s.Entitled)
	switch {
	case s.Occupancy != nil:
		out = percent(*s.Occupancy) + " of " + out
	case s.Busy != nil && s.StdErr != nil:
		out = fmt.Sprintf("%.0f±%.0f%% of %s", *s.Busy, *s.StdErr, out)
	}
	if !s.Gated {
		out += " (not enforced)"
	}
	return out
}

func pid(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// command is the head of a command line, by characters.
func command(argv []string) string {
	const wide = 48
	s := []rune(strings.Join(argv, " "))
	if len(s) > wide {
		s = append(s[:wide-1], '…')
	}
	return string(s)
}
