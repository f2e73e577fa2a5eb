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
	columns := []column{
		{head: "GPU"},
		{head: "ID", drop: 1},
		{head: "PROFILE"},
		{head: "PLACEMENT", drop: 2},
		{head: "MEMORY"},
		{head: "DEVICE", min: 13, want: 40},
		{head: "LEASE", min: 12, want: 24, middle: true},
	}
	var rows []line
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
			rows = append(rows, line{cells: []string{
				gpuColumn(s.GPUs[i].Index),
				fmt.Sprint(in.ID),
				in.Profile,
				fmt.Sprintf("%d:%d", in.Placement.Start, in.Placement.Size),
				memory(in.Memory),
				device,
				lease,
			}})
			for j := 1; j < len(in.UUIDs) && len(in.Compute) == 0; j++ { // Of an older daemon.
				rows = append(rows, line{cells: []string{"", "", "", "", "", in.UUIDs[j], ""}})
			}
			if len(in.Compute) > 0 {
				last := rows[len(rows)-1].cells
				last[5] = ""
				if !in.Foreign && in.RemovedAt == nil && !in.Imported {
					last[6] = ""
				}
			}
			for _, c := range in.Compute { // A lease has one of them.
				rows = append(rows, line{cells: []string{"", "", "  " + c.Profile, "", "", c.UUID, dash(c.Lease)}})
			}
		}
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.io.Out, "no MIG instances")
		return
	}
	a.fit(columnsOf(a.io.Out), columns, rows)
}

// relative says when something is due.
func relative(left time.Duration) string {
	if left < time.Second {
		return "now"
	}
	return "in " + left.Round(time.Second).String()
}
