package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
)

func (a *app) gpuCommand() *cobra.Command {
	return group("gpu", "GPUs of this host",
		a.listing("list", "List GPUs with their mode, memory and state", func(s *api.Status) any {
			return struct {
				SchemaVersion int             `json:"schema_version"`
				GPUs          []api.GPUStatus `json:"gpus"`
			}{1, s.GPUs}
		}, func(s *api.Status) { a.gpuList(s) }), a.gpuShow(), a.gpuCordon(), a.gpuUncordon(), a.gpuDrain(), a.gpuRetry())
}

func (a *app) gpuRetry() *cobra.Command {
	var o client.RetryOptions
	var d draining
	c := &cobra.Command{
		Use: "retry GPU", Short: "Try a held or stuck GPU again", Args: exactArgs(1, "a GPU's index or UUID"),
		Long: `Retry changes one GPU to what the spec in force says. It touches no other GPU. A refusal
names what is in the way, and the command for that. A GPU that an engine places on
(owner: slurm) is changed as by 'gpushare apply': not while jobs may have it.`,
		Example:           "  gpushare gpu retry 3\n  gpushare gpu retry 3 --force",
		ValidArgsFunction: a.completeFirst(gpusOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var op *api.Operation
			err = a.withPermission(cmd.Context(), id, !o.AllowReset, func(resets []string) error {
				o.Resets = resets
				return a.nextToJobs(cmd.Context(), &o.Drained, &d, func() (err error) {
					op, err = a.client.RetryGPU(cmd.Context(), id, o)
					return err
				})
			})
			if err != nil {
				return err
			}
			return a.follow(cmd.Context(), op)
		},
	}
	c.Flags().BoolVar(
		&o.Force, "force", false,
		"stop leases and processes that use the GPU: SIGTERM, a grace period, then SIGKILL; allow steps that cannot be undone",
	)
	c.Flags().
		BoolVar(&o.AllowReset, "allow-reset", false, "let the driver reset the GPU if a change of MIG mode needs it; without it a terminal is asked, and a script gets exit code 8")
	jobFlags(c, &o.Drained, &d)
	return c
}

func (a *app) gpuList(s *api.Status) {
	columns := []column{
		{head: "GPU"},
		{head: "UUID", min: 13, want: 40},
		{head: "PCI", drop: 1},
		{head: "MODEL", min: 8, drop: 2},
		{head: "MODE"},
		{head: "MEMORY"},
		{head: "STATE"},
	}
	var rows []line
	width := columnsOf(a.io.Out)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		state, note := gpuState(g), ""
		if width > 0 {
			state, note = g.State, g.Reason // A reason may need lines of its own.
		}
		rows = append(rows, line{[]string{gpuColumn(g.Index), g.UUID, g.PCI, g.Model, g.Mode, memory(g.Memory), state}, note})
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.io.Out, "no GPUs")
		return
	}
	a.fit(width, columns, rows)
}
