package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/remote"
	"github.com/gpushare/gpushare/internal/text"
)

// idleOfHosts has who does not use what they have on the hosts.
func (a *app) idleOfHosts(cmd *cobra.Command, hosts []hostAnswer) (*hostTable, error) {
	least := defaultIdle
	if f := cmd.Flags().Lookup("for"); f.Changed {
		d, err := api.ParseDuration(f.Value.String())
		if err != nil {
			return nil, err
		}
		least = d
	}
	t := newHostTable(
		column{head: "LEASE", min: 12, want: 24, middle: true}, column{head: "TENANT", min: 6, drop: 2}, column{head: "USER", min: 5},
		column{head: "JOB", min: 8, drop: 4, middle: true}, column{head: "ACCOUNT", drop: 3}, column{head: "GPU"}, column{head: "HOLDS"},
		column{head: "USES"}, column{head: "IDLE"}, column{head: "SINCE", drop: 1},
	)
	var stops []string
	read := 0
	for i := range hosts {
		idle, ok := decode[api.Idle](&hosts[i])
		if !ok {
			continue
		}
		read++
		shown, unknown := 0, 0
		for j := range idle.Uses {
			h := &idle.Uses[j]
			switch {
			case h.State == api.UseUnknown:
				unknown++
				continue
			case h.State != api.UseIdle || h.IdleSeconds == nil || seconds(*h.IdleSeconds) < time.Duration(least):
				continue
			}
			row := idleRow(h, idle.At)
			t.add(hosts[i].Host, shown, row.cells, row.note)
			shown++
			if stop, ok := stopOn(hosts[i].Host, h); ok && len(stops) < mostHostRows {
				stops = append(stops, "  "+stop)
			}
		}
		if unknown > 0 {
			t.note(hosts[i].Host, []string{text.Count(unknown, "use") + " not measured: 'gpushare idle' there says why"})
		}
	}
	if len(t.rows) == 0 && read > 0 {
		t.tail = append(t.tail, fmt.Sprintf("nothing that is measured was idle for %s on %s", least, text.Count(read, "host")))
	}
	if len(stops) > 0 {
		t.tail = append(append(t.tail, "", "these commands end the leases:"), stops...)
	}
	return t, nil
}

// stopOn is the command that ends a lease on a host. It is not the text that the host sent: a reader gives it to a shell.
func stopOn(host string, h *api.IdleUse) (string, bool) {
	if h.Lease == "" || h.Stop == "" || h.Lease[0] == '-' || len(h.Lease) > mostHostText {
		return "", false
	}
	there, err := remote.Quote([]string{"gpushare", "lease", "stop", h.Lease})
	if err != nil {
		return "", false
	}
	if here, err := remote.Quote([]string{h.Lease}); err != nil || here != h.Lease { // It is no id of a lease.
		return "", false
	}
	return "ssh " + host + " " + there, true
}
