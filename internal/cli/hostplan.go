package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// mostUnchanged is how many hosts without changes are named.
const mostUnchanged = 10

// planOfHosts has how hosts differ from their specs.
func (a *app) planOfHosts(_ *cobra.Command, hosts []hostAnswer) (*hostTable, error) {
	var same []string
	t := newHostTable(
		column{head: "GPU"},
		column{head: "STEP", min: 20, want: 60},
		column{head: "DISTURBS", min: 10, drop: 2},
		column{head: "REASON", min: 10, drop: 1},
	)
	for i := range hosts {
		p, ok := decode[api.Plan](&hosts[i])
		if !ok {
			continue
		}
		host := hosts[i].Host
		for j := range p.Steps {
			s := &p.Steps[j]
			t.add(host, j, []string{dash(shortUUID(s.GPU)), s.Text, strings.Join(s.Disturbs, ", "), s.Reason}, "")
		}
		lines := p.Warnings
		for j := range p.Unreachable {
			lines = append(lines, "not reached: "+p.Unreachable[j].Reason)
		}
		for j := range p.Held {
			lines = append(lines, heldGPU(&p.Held[j]))
		}
		t.note(host, lines)
		switch {
		case !p.Complete():
			t.code = api.ExitIncomplete
		case p.Empty:
			same = append(same, host)
		case t.code == api.ExitOK:
			t.code = api.ExitChanges
		}
	}
	switch {
	case len(same) > mostUnchanged:
		t.tail = []string{"no changes on " + text.Count(len(same), "host")}
	case len(same) > 0:
		t.tail = []string{"no changes on " + strings.Join(same, ", ")}
	}
	return t, nil
}
