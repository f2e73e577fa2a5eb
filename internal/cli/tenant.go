package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) tenantCommand() *cobra.Command {
	return group(
		"tenant",
		"Tenants, their limits and grants",
		a.listing("list", "List tenants and their grants", func(s *api.Status) any {
			return struct {
				SchemaVersion int                `json:"schema_version"`
				Tenants       []api.TenantStatus `json:"tenants"`
			}{1, s.Tenants}
		}, func(s *api.Status) { a.tenants(s.Tenants) }),
		a.tenantShow(),
		a.tenantFreeze(
			"freeze",
			"Freeze all leases of a tenant until it is thawed",
			func(ctx context.Context, name string) (*api.TenantFreezeResult, error) {
				return a.client.FreezeTenant(ctx, name)
			},
		),
		a.tenantFreeze("thaw", "Thaw a tenant that was frozen", func(ctx context.Context, name string) (*api.TenantFreezeResult, error) {
			return a.client.ThawTenant(ctx, name)
		}),
	)
}

// tenantFreeze is a verb that freezes or thaws the leases of a tenant.
func (a *app) tenantFreeze(use, short string, do func(context.Context, string) (*api.TenantFreezeResult, error)) *cobra.Command {
	return &cobra.Command{
		Use:               use + " NAME",
		Short:             short,
		Args:              exactArgs(1, "the name of a tenant"),
		ValidArgsFunction: a.completeFirst(tenantsOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := do(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(r)
			}
			state := "is not frozen"
			if r.Frozen != nil {
				state = "is frozen: no lease of it starts"
			}
			fmt.Fprintf(a.io.Out, "tenant %s %s\n", r.Tenant, state)
			for _, l := range r.Leases {
				line := fmt.Sprintf("  %s runs", l.Lease)
				if l.Frozen {
					line = fmt.Sprintf("  %s is frozen", l.Lease)
				}
				if l.Reason != "" {
					line += ": " + l.Reason
				}
				fmt.Fprintln(a.io.Out, line)
			}
			return nil
		},
	}
}

// listing is a verb that shows one part of the status.
func (a *app) listing(use, short string, part func(*api.Status) any, text func(*api.Status)) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		s, err := a.client.Status(cmd.Context())
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(part(s))
		}
		text(s)
		return nil
	}}
}

func (a *app) tenantShow() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show one tenant with its limits as read back",
		Args:              exactArgs(1, "the name of a tenant"),
		ValidArgsFunction: a.completeFirst(tenantsOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.client.Status(cmd.Context())
			if err != nil {
				return err
			}
			for i := range s.Tenants {
				t := &s.Tenants[i]
				if t.Name != args[0] {
					continue
				}
				if a.json {
					return a.printJSON(struct {
						SchemaVersion int `json:"schema_version"`
						*api.TenantStatus
					}{1, t})
				}
				a.tenants([]api.TenantStatus{*t})
				fmt.Fprintln(a.io.Out)
				rows := [][]string{{"LIMIT", "DESIRED", "IN FORCE", "REASON"}}
				for _, l := range t.Limits {
					rows = append(rows, []string{l.Name, l.Desired, dash(l.InForce), l.Reason})
				}
				if len(rows) == 1 {
					fmt.Fprintln(a.io.Out, "no host limits")
				} else {
					a.table(rows)
				}
				a.containers(t)
				return nil
			}
			return &api.Error{
				Kind:    api.KindNotFound,
				Message: fmt.Sprintf("there is no tenant %q that you may see", args[0]),
				Hint:    "'gpushare tenant list' shows them",
			}
		},
	}
}

func (a *app) tenants(tenants []api.TenantStatus) {
	if len(tenants) == 0 {
		fmt.Fprintln(a.io.Out, "no tenants")
		return
	}
	columns := []column{
		{head: "TENANT", min: 8, middle: true},
		{head: "GRANT", min: 6, middle: true},
		{head: "MAY USE", min: 20},
		{head: "LEASES"},
		{head: "GPUS"},
	}
	var rows []line
	for _, t := range tenants {
		name := t.Name
		if t.Priority != "" && t.Priority != "normal" {
			name += " (" + t.Priority + ")"
		}
		for _, g := range t.Grants {
			leases := fmt.Sprint(g.Leases)
			if g.MaxLeases > 0 {
				leases += fmt.Sprintf(" of %d", g.MaxLeases)
			}
			if g.Queued > 0 {
				leases += fmt.Sprintf(", %d waiting", g.Queued)
			}
			rows = append(rows, line{cells: []string{name, g.Name, g.Text, leases, text.Count(len(g.GPUs), "GPU")}})
			name = ""
		}
		if len(t.Grants) == 0 {
			rows = append(rows, line{cells: []string{name, "-", "no GPU", "", ""}})
		}
	}
	a.fit(columnsOf(a.io.Out), columns, rows)
}

// containers prints how to start a container in each grant that accepts one.
func (a *app) containers(t *api.TenantStatus) {
	head := "\nto start a container in a grant, as root:\n"
	for _, g := range t.Grants {
		if g.Container != nil {
			fmt.Fprintf(a.io.Out, "%s  %s: %s\n", head, g.Name, g.Container.Command)
			head = ""
		}
	}
}
