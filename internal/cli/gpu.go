package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) gpuCommand() *cobra.Command {
	return group("gpu", "GPUs of this host",
		a.listing("list", "List GPUs with their mode, memory and state", func(s *api.Status) any {
			return struct {
				SchemaVersion int             `json:"schema_version"`
				GPUs          []api.GPUStatus `json:"gpus"`
			}{1, s.GPUs}
		}, func(s *api.Status) { a.gpuList(s) }),
		&cobra.Command{
			Use: "retry GPU", Short: "Try a held or stuck GPU again", Args: exactArgs(1, "a GPU's index or UUID"),
			Example:           "  gpushare gpu retry 3",
			ValidArgsFunction: a.completeFirst(gpusOf),
			RunE: func(cmd *cobra.Command, args []string) error {
				op, err := a.client.RetryGPU(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.follow(cmd, op)
			},
		})
}

func (a *app) gpuList(s *api.Status) {
	rows := [][]string{{"GPU", "UUID", "PCI", "MODEL", "MODE", "MEMORY", "STATE"}}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		rows = append(rows, []string{fmt.Sprint(g.Index), g.UUID, g.PCI, g.Model, g.Mode, memory(g.Memory), gpuState(g)})
	}
	if len(rows) == 1 {
		fmt.Fprintln(a.io.Out, "no GPUs")
		return
	}
	a.table(rows)
}

func (a *app) migCommand() *cobra.Command {
	return group("mig", "MIG instances",
		a.listing("list", "List MIG instances with their placement and who uses them", func(s *api.Status) any {
			type row struct {
				GPU string `json:"gpu"`
				api.InstanceStatus
			}
			out := struct {
				SchemaVersion int   `json:"schema_version"`
				Instances     []row `json:"instances"`
			}{1, []row{}}
			for i := range s.GPUs {
				if m := s.GPUs[i].MIG; m != nil {
					for _, in := range m.Instances {
						out.Instances = append(out.Instances, row{s.GPUs[i].UUID, in})
					}
				}
			}
			return out
		}, a.migList))
}

func (a *app) migList(s *api.Status) {
	rows := [][]string{{"GPU", "ID", "PROFILE", "PLACEMENT", "MEMORY", "DEVICE", "LEASE"}}
	for i := range s.GPUs {
		if s.GPUs[i].MIG == nil {
			continue
		}
		for _, in := range s.GPUs[i].MIG.Instances {
			device, lease := "orphan: no compute instance", dash(in.Lease)
			if len(in.UUIDs) > 0 {
				device = in.UUIDs[0]
			}
			if in.Foreign {
				lease = "foreign"
			}
			rows = append(rows, []string{fmt.Sprint(s.GPUs[i].Index), fmt.Sprint(in.ID), in.Profile, fmt.Sprintf("%d:%d", in.Start, in.Size), memory(in.Memory), device, lease})
		}
	}
	if len(rows) == 1 {
		fmt.Fprintln(a.io.Out, "no MIG instances")
		return
	}
	a.table(rows)
}

func (a *app) mpsCommand() *cobra.Command {
	return group("mps", "CUDA MPS control daemons",
		a.listing("list", "List MPS control daemons, one for each GPU in MPS mode", func(s *api.Status) any {
			type row struct {
				GPU string `json:"gpu"`
				api.MPSStatus
			}
			out := struct {
				SchemaVersion int   `json:"schema_version"`
				MPS           []row `json:"mps"`
			}{1, []row{}}
			for i := range s.GPUs {
				if m := s.GPUs[i].MPS; m != nil {
					out.MPS = append(out.MPS, row{s.GPUs[i].UUID, *m})
				}
			}
			return out
		}, func(s *api.Status) {
			rows := [][]string{{"GPU", "STATE", "PID", "UNIT", "CLIENTS", "ENFORCE", "REASON"}}
			for i := range s.GPUs {
				if m := s.GPUs[i].MPS; m != nil {
					rows = append(rows, []string{fmt.Sprint(s.GPUs[i].Index), m.State, pid(m.PID), dash(m.Unit), fmt.Sprint(m.Clients), m.Enforce, m.Reason})
				}
			}
			if len(rows) == 1 {
				fmt.Fprintln(a.io.Out, "no GPU is in MPS mode")
				return
			}
			a.table(rows)
		}))
}
