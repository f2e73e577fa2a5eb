package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
)

func (a *app) mpsCommand() *cobra.Command {
	return group(
		"mps",
		"CUDA MPS control daemons",
		a.listing(
			"list",
			"List MPS control daemons, one for each GPU in MPS mode and for each MIG instance that is shared",
			func(s *api.Status) any {
				type row struct {
					GPU      string            `json:"gpu"`
					Profile  string            `json:"profile,omitempty"`
					Instance *api.MIGPlacement `json:"instance,omitempty"`
					api.MPSStatus
				}
				out := struct {
					SchemaVersion int   `json:"schema_version"`
					MPS           []row `json:"mps"`
				}{1, []row{}}
				eachMPS(s, func(g *api.GPUStatus, in *api.InstanceStatus, m *api.MPSStatus) {
					r := row{GPU: g.UUID, MPSStatus: *m}
					if in != nil {
						r.Profile, r.Instance = in.Profile, &in.Placement
					}
					out.MPS = append(out.MPS, r)
				})
				return out
			},
			func(s *api.Status) {
				columns := []column{
					{head: "GPU"},
					{head: "INSTANCE"},
					{head: "STATE"},
					{head: "PID"},
					{head: "UNIT", min: 14, drop: 1, middle: true},
					{head: "CLIENTS"},
					{head: "BYPASS"},
				}
				var rows []line
				eachMPS(s, func(g *api.GPUStatus, in *api.InstanceStatus, m *api.MPSStatus) {
					instance := ""
					if in != nil {
						instance = fmt.Sprintf("%s at %d", in.Profile, in.Placement.Start)
					}
					rows = append(rows, line{
						[]string{gpuColumn(g.Index), dash(instance), m.State, pid(m.PID), dash(m.Unit), clients(m), m.Bypass}, mpsNote(m),
					})
				})
				if len(rows) == 0 {
					fmt.Fprintln(a.io.Out, "no GPU is in MPS mode")
					return
				}
				a.fit(columnsOf(a.io.Out), columns, rows)
			},
		),
		a.mpsShow(),
		a.mpsLog(),
		a.mpsRestart(),
		a.mpsDrain(
			"drain",
			"Close the MPS of a GPU or MIG instance to new leases",
			"Drain closes the MPS of a GPU or a MIG instance to new leases. Those that run continue. It\nstays drained over a restart of the daemon and over a boot, until 'gpushare mps resume'.",
			func(ctx context.Context, id string) (*api.MPSDrainResult, error) { return a.client.DrainMPS(ctx, id) },
		),
		a.mpsDrain(
			"resume", "Open a drained MPS to new leases again",
			"Resume ends 'gpushare mps drain'. A tenant that is held back there after fatal faults gets\nleases again.",
			func(ctx context.Context, id string) (*api.MPSDrainResult, error) { return a.client.ResumeMPS(ctx, id) },
		),
	)
}

// clients is "2 of 48".
func clients(m *api.MPSStatus) string {
	if m.MaxClients == 0 {
		return fmt.Sprint(m.Clients)
	}
	return fmt.Sprintf("%d of %d", m.Clients, m.MaxClients)
}

// eachMPS calls f for each control daemon; in is nil for that of a whole GPU.
func eachMPS(s *api.Status, f func(g *api.GPUStatus, in *api.InstanceStatus, m *api.MPSStatus)) {
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.MPS != nil {
			f(g, nil, g.MPS)
		}
		if g.MIG == nil {
			continue
		}
		for j := range g.MIG.Instances {
			if in := &g.MIG.Instances[j]; in.MPS != nil {
				f(g, in, in.MPS)
			}
		}
	}
}

// mpsNote is why MPS takes no leases.
func mpsNote(m *api.MPSStatus) string {
	if m.Reason == "" && m.Drained != nil {
		return "drained by " + m.Drained.By
	}
	return m.Reason
}

// mpsArgument is what the commands for one control daemon need.
const mpsArgument = "a GPU's index or UUID, or a MIG instance as GPU:START or by the UUID of its device"

// mpsGPUs offers the GPUs in MPS mode, and the MIG instances that are shared.
func mpsGPUs(s *api.Status) []string {
	var instances []string
	eachMPS(s, func(g *api.GPUStatus, in *api.InstanceStatus, m *api.MPSStatus) {
		if in != nil {
			instances = append(instances, fmt.Sprintf("%d:%d\t%s", g.Index, in.Placement.Start, describe(in.Profile+", "+m.State)))
		}
	})
	only := *s
	only.GPUs = nil
	for i := range s.GPUs {
		if s.GPUs[i].MPS != nil {
			only.GPUs = append(only.GPUs, s.GPUs[i])
		}
	}
	return append(gpusOf(&only), instances...)
}

func (a *app) mpsShow() *cobra.Command {
	return &cobra.Command{
		Use:               "show GPU[:START]",
		Short:             "Show the MPS of one GPU or MIG instance: its clients, and what of its limits is enforced",
		Args:              exactArgs(1, mpsArgument),
		Example:           "  gpushare mps show 2\n  gpushare mps show 0:4\n  gpushare mps show 2 --json",
		ValidArgsFunction: a.completeFirst(mpsGPUs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			m, err := a.client.MPS(cmd.Context(), id)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(m)
			}
			a.mpsDetail(m)
			return nil
		},
	}
}

func (a *app) mpsDetail(m *api.MPSDetail) {
	started, servers := "-", "-"
	if m.Started != nil {
		started = m.Started.Local().Format(time.DateTime)
	}
	if len(m.Servers) > 0 {
		servers = strings.Trim(fmt.Sprint(m.Servers), "[]")
	}
	rows := [][]string{
		{"GPU", gpuWithUUID(m.Index, m.GPU)},
	}
	if m.Instance != nil {
		rows = append(rows, []string{"instance", fmt.Sprintf("%s at %d", m.Profile, m.Instance.Start)})
	}
	rows = append(rows, [][]string{
		{"state", m.State},
		{"version", dash(m.Version)},
		{"unit", dash(m.Unit)},
		{"control daemon", pid(m.PID)},
		{"started", started},
		{"servers", servers},
		{"restarts", fmt.Sprint(m.Restarts)},
		{"bypass", m.Bypass},
	}...)
	if m.Reason != "" {
		rows = append(rows, []string{"reason", m.Reason})
	}
	if m.Retry != nil {
		rows = append(rows, []string{"next start", m.Retry.Local().Format(time.DateTime)})
	}
	if m.Drained != nil {
		rows = append(
			rows, []string{"drained", fmt.Sprintf("by %s, since %s", m.Drained.By, m.Drained.Since.Local().Format(time.DateTime))},
		)
	}
	a.table(rows)
	fmt.Fprintln(a.io.Out)
	listed := [][]string{{"CLIENT", "COMMAND", "TENANT", "LEASE", "MEMORY"}}
	for _, c := range m.ClientList {
		used := "-"
		if c.Memory != nil {
			used = api.Bytes(*c.Memory).Short()
		}
		listed = append(listed, []string{pid(c.PID), dash(c.Command), dash(c.Tenant), dash(c.Lease), used})
	}
	if len(listed) == 1 {
		fmt.Fprintln(a.io.Out, "no clients")
	} else {
		a.table(listed)
	}
	if len(m.Rules) > 0 {
		fmt.Fprintln(a.io.Out)
		a.rules(m.Rules)
	}
}

func (a *app) mpsLog() *cobra.Command {
	var lines int
	c := &cobra.Command{
		Use:   "log GPU[:START]",
		Short: "Show the last lines of the control daemon of a GPU or MIG instance and its servers",
		Args:  exactArgs(1, mpsArgument),
		Long: `Log shows what the MPS control daemon of a GPU and its servers wrote last, also after
they have ended. The lines name processes of every tenant, so only administrators may
read them.`,
		Example:           "  gpushare mps log 2\n  gpushare mps log 2 --lines 200",
		ValidArgsFunction: a.completeFirst(mpsGPUs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			l, err := a.client.MPSLog(cmd.Context(), id, lines)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(l)
			}
			for _, line := range l.Lines {
				fmt.Fprintln(a.io.Out, printable(line))
			}
			if len(l.Lines) == 0 {
				fmt.Fprintln(a.io.Out, "no lines")
			}
			return nil
		},
	}
	c.Flags().IntVarP(&lines, "lines", "n", 50, "show only this many last lines, 1 to 1000")
	return c
}

func (a *app) mpsRestart() *cobra.Command {
	var o client.MPSRestartOptions
	c := &cobra.Command{
		Use:   "restart GPU[:START]",
		Short: "Restart the MPS of a GPU or MIG instance",
		Args:  exactArgs(1, mpsArgument),
		Long: `Restart replaces the MPS control daemon of a GPU, or of a MIG instance, and its servers.
It touches no other one. With clients it is refused, and names them; --force terminates them first.`,
		Example:           "  gpushare mps restart 2 --check\n  gpushare mps restart 2\n  gpushare mps restart 2 --force\n  gpushare mps restart 0:4",
		ValidArgsFunction: a.completeFirst(mpsGPUs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			res, err := a.client.RestartMPS(cmd.Context(), id, o)
			if err != nil {
				return err
			}
			if a.json {
				return a.applyJSON(cmd, res, false, leftHeld)
			}
			a.plan(cmd.Context(), &res.Plan, o.Check, false)
			if res.Operation == nil {
				return nil
			}
			return a.follow(cmd.Context(), res.Operation)
		},
	}
	c.Flags().BoolVar(&o.Check, "check", false, "stop after the plan: change nothing")
	c.Flags().BoolVar(&o.Force, "force", false, "terminate its clients")
	return c
}

// mpsDrain is a verb that closes or opens the MPS of a GPU.
func (a *app) mpsDrain(use, short, long string, do func(context.Context, string) (*api.MPSDrainResult, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " GPU[:START]", Short: short, Long: long, Args: exactArgs(1, mpsArgument),
		Example: "  gpushare mps " + use + " 2", ValidArgsFunction: a.completeFirst(mpsGPUs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := do(cmd.Context(), id)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(r)
			}
			if r.Drained == nil {
				fmt.Fprintf(a.io.Out, "MPS of GPU %s takes leases\n", printable(args[0]))
				return nil
			}
			fmt.Fprintf(a.io.Out, "MPS of GPU %s is drained: it takes no new lease\n", printable(args[0]))
			for _, l := range r.Leases {
				fmt.Fprintf(a.io.Out, "  %s runs on\n", l)
			}
			return nil
		},
	}
}
