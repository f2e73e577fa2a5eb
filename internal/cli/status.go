package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) statusCommand() *cobra.Command {
	var exitCode bool
	c := &cobra.Command{
		Use: "status", Short: "Show GPUs, tenants and leases as they are now", Args: noArgs,
		Example: "  gpushare status\n  gpushare status --json | jq '.gpus[].memory'\n  gpushare status --exit-code   # 6 when something is degraded",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.client.Status(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(s)
			} else {
				a.status(s)
			}
			if err == nil && exitCode && len(s.Node.Conditions) > 0 {
				return &exitError{code: api.ExitDegraded}
			}
			return err
		},
	}
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 6 when something is degraded")
	return c
}

func (a *app) status(s *api.Status) {
	a.statusHead(&s.Node)
	fmt.Fprintln(a.io.Out)
	a.gpus(s)
	if len(s.Tenants) > 0 {
		fmt.Fprintln(a.io.Out)
		a.tenants(s.Tenants)
	}
	if len(s.Leases) > 0 {
		fmt.Fprintln(a.io.Out)
		a.leases(s.Leases)
	}
}

func (a *app) statusHead(n *api.NodeStatus) {
	head := []string{n.Host}
	switch {
	case n.Generation == 0:
		head = append(head, "no spec applied yet")
	case n.Enforce == "on":
		head = append(head, fmt.Sprintf("generation %d", n.Generation), "enforcing")
	default:
		head = append(head, fmt.Sprintf("generation %d", n.Generation), "observing only: nothing is enforced")
	}
	if n.Driver != "" {
		head = append(head, "driver "+n.Driver)
	}
	head = append(head, n.Adapter)
	if n.Operation != "" {
		head = append(head, "changing: "+n.Operation)
	}
	fmt.Fprintln(a.io.Out, strings.Join(head, " · "))
	for _, c := range n.Conditions {
		where := strings.TrimSpace(shortUUID(c.GPU) + " " + c.Tenant)
		if where != "" {
			where += ": "
		}
		fmt.Fprintf(a.io.Out, "! %s%s\n", where, c.Message)
		if c.Hint != "" {
			fmt.Fprintf(a.io.Out, "  %s\n", c.Hint)
		}
	}
}

func (a *app) gpus(s *api.Status) {
	if len(s.GPUs) == 0 {
		fmt.Fprintln(a.io.Out, "no GPUs")
		return
	}
	rows := [][]string{{"GPU", "MODEL", "MODE", "MEMORY", "BUSY", "STATE", ""}}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		rows = append(rows, []string{
			fmt.Sprint(g.Index), strings.TrimPrefix(g.Model, "NVIDIA "), g.Mode, memory(g.Memory), busy(g.Utilization), gpuState(g), gpuNote(g),
		})
		if g.MIG == nil {
			continue
		}
		for _, in := range g.MIG.Instances {
			note := dash(in.Lease)
			switch {
			case in.Foreign:
				note = "foreign: not made by gpushare"
			case len(in.UUIDs) == 0:
				note = "orphan: no compute instance"
			case in.Lease == "":
				note = "free"
			}
			rows = append(rows, []string{"", fmt.Sprintf("  %s at %d", in.Profile, in.Start), "", memory(in.Memory), "", "", note})
		}
	}
	a.table(rows)
}

func busy(u *int) string {
	if u == nil {
		return "-"
	}
	return fmt.Sprintf("%d%%", *u)
}

func gpuState(g *api.GPUStatus) string {
	if g.Reason != "" {
		return g.State + ": " + g.Reason
	}
	return g.State
}

func gpuNote(g *api.GPUStatus) string {
	notes := []string{}
	if m := g.MPS; m != nil {
		n := "MPS " + m.State
		if m.State == "running" {
			n += ", " + plural(m.Clients, "client")
		}
		if m.Reason != "" {
			n += ": " + m.Reason
		}
		notes = append(notes, n)
	}
	strangers := 0
	for _, p := range g.Processes {
		if p.Lease == "" && p.Kind != "mps-server" {
			strangers++
		}
	}
	if strangers > 0 && g.Mode != api.ModeUnmanaged && g.Mode != api.ModeExternal {
		notes = append(notes, plural(strangers, "process")+" outside any lease")
	}
	return strings.Join(notes, "; ")
}
