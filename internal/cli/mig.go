package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) migCommand() *cobra.Command {
	return group("mig", "MIG instances",
		a.listing("list", "List MIG instances with their placement and lease", func(s *api.Status) any {
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
		}, a.migList),
		a.migProfiles(), a.migPlan(), a.migImport(), a.migRemove(), a.migFrag(), a.migConvert(), a.migExport())
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
			switch {
			case in.Foreign:
				lease = "foreign"
			case in.Lease == "" && in.RemovedAt != nil:
				lease = "idle, removed " + relative(time.Until(*in.RemovedAt))
			case in.Lease == "" && in.Imported:
				lease = "imported"
			}
			rows = append(rows, []string{
				gpuColumn(s.GPUs[i].Index),
				fmt.Sprint(in.ID),
				in.Profile,
				fmt.Sprintf("%d:%d", in.Placement.Start, in.Placement.Size),
				memory(in.Memory),
				device,
				lease,
			})
			for j := 1; j < len(in.UUIDs) && len(in.Compute) == 0; j++ { // Of an older daemon.
				rows = append(rows, []string{"", "", "", "", "", in.UUIDs[j], ""})
			}
			if len(in.Compute) > 0 {
				last := rows[len(rows)-1]
				last[5] = ""
				if !in.Foreign && in.RemovedAt == nil && !in.Imported {
					last[6] = ""
				}
			}
			for _, c := range in.Compute { // A lease has one of them.
				rows = append(rows, []string{"", "", "  " + c.Profile, "", "", c.UUID, dash(c.Lease)})
			}
		}
	}
	if len(rows) == 1 {
		fmt.Fprintln(a.io.Out, "no MIG instances")
		return
	}
	a.table(rows)
}

// relative says when something is due.
func relative(left time.Duration) string {
	if left < time.Second {
		return "now"
	}
	return "in " + left.Round(time.Second).String()
}
