package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// statusOfHosts has one row for each GPU of each host.
func (a *app) statusOfHosts(cmd *cobra.Command, hosts []hostAnswer) (*hostTable, error) {
	wide := cmd.Flags().Lookup("output").Value.String() == "wide"
	t := newHostTable(
		column{head: "GPU"}, column{head: "MODEL", min: 12, drop: 1}, column{head: "MODE"}, column{head: "MEMORY"}, column{head: "BUSY"},
		column{head: "LEASES"}, column{head: "STATE"}, column{head: "UUID"}, column{head: "PCI"},
	)
	t.wide, t.prefix = wide, a.paint(yellow, "!")+" "
	read, gpus, leases := 0, 0, 0
	for i := range hosts {
		s, ok := decode[api.Status](&hosts[i])
		if !ok {
			continue
		}
		read, gpus, leases = read+1, gpus+len(s.GPUs), leases+len(s.Leases)
		news := unacknowledged(s.Node.Conditions)
		if len(news) > 0 {
			t.code = api.ExitDegraded
		}
		if len(s.GPUs) == 0 {
			t.add(hosts[i].Host, 0, []string{"-", "", "", "", "", "", "", "", ""}, "no GPUs")
		}
		for j := range s.GPUs {
			g := &s.GPUs[j]
			cells := []string{
				gpuColumn(g.Index), strings.TrimPrefix(g.Model, "NVIDIA "), g.Mode, gpuMemory(g), busy(g.Utilization),
				strconv.Itoa(usersOn(s, g.UUID)), g.State, "", "",
			}
			if wide {
				cells[7], cells[8] = g.UUID, g.PCI
			}
			t.add(hosts[i].Host, j, cells, gpuNote(g, unsaid(s, g)))
		}
		var lines []string
		for j := range news {
			lines = append(lines, conditionText(s, &news[j]))
		}
		t.note(hosts[i].Host, lines)
	}
	if read > 0 {
		t.tail = []string{
			fmt.Sprintf("%s, %s, %s", text.Count(read, "host"), text.Count(gpus, "GPU"), text.Count(leases, "lease")),
		}
	}
	return t, nil
}

// usersOn is how many leases use a GPU or an instance of it.
func usersOn(s *api.Status, id string) int {
	n := 0
	for i := range s.Leases {
		if l := &s.Leases[i]; l.State != "queued" && slices.Contains(gpusUsedBy(s, l), id) {
			n++
		}
	}
	return n
}
