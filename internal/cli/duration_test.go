package cli_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// A flag of one name reads the same, and says so in the same words, in every command.
func TestTimesAreWrittenAlike(t *testing.T) {
	const ago, noLimit = "1m to 435d ago, as in 36h or 7d, or a date (UTC) as in 2026-02-01", "at most this long, as in 10m or 1d"
	found := map[string]int{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			is := func(kind, alone, says string) {
				found[f.Name]++
				if f.Value.Type() != kind || f.NoOptDefVal != alone || !strings.Contains(f.Usage, says) {
					t.Errorf("'%s --%s' is a %s, alone %q: %s", c.CommandPath(), f.Name, f.Value.Type(), f.NoOptDefVal, f.Usage)
				}
			}
			switch f.Name {
			case "wait":
				is("duration", "0s", noLimit+" (--wait alone or --wait=0: no limit)")
			case "timeout":
				is("duration", "", noLimit+" (0: no limit)")
			case "time", "for", "every":
				is("duration", "", "")
			case "since":
				is("string", "", ago)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(cli.Root())
	for name, least := range map[string]int{"wait": 4, "timeout": 3, "time": 2, "since": 4} {
		if found[name] < least {
			t.Errorf("%d commands have --%s, want at least %d: each that starts a lease or waits has it", found[name], name, least)
		}
	}
}

// A wait of 0 has no limit, whatever the flag is called, and its value may be another word wherever it may be left out.
func TestWaitsWithoutALimit(t *testing.T) {
	for _, args := range []string{
		"operation wait op-13 --timeout 0", "ready --timeout 0", "gpu drain 1 --timeout 0s",
		"maintenance on --wait", "maintenance on --wait 0", "maintenance --wait 2h on", "maintenance on --wait 1d --reason fans",
	} {
		t.Run(args, func(t *testing.T) {
			r := applying(operation("done", nil))
			well := emptyNode()
			well.GPUs = labNode().GPUs[2:3]
			r["GET /v1/status"] = well
			r["POST /v1/gpus/1/cordon"] = api.CordonResult{Index: 1, GPU: gpu1, Cordoned: &api.Cordon{}}
			m := api.MaintenanceResult{Changed: true, Maintenance: &api.Maintenance{By: "root"}}
			r["POST /v1/maintenance"], r["GET /v1/maintenance"] = m, m
			if got := run(t, r, "", strings.Fields(args)...); got.code != api.ExitOK {
				t.Errorf("exit code %d:\n%s", got.code, got.all)
			}
		})
	}
}

// What is attached is placed and ends as what is run.
func TestAttachWhereAndHowLong(t *testing.T) {
	var body strings.Builder
	r := routes{"GET /v1/status": labNode(), "POST /v1/leases/attach": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_ = q.Write(&body)
		granted()(w, q)
	})}
	args := "lease attach --pid 4711 --gpu 4,GPU-cd5d2d71 --time 1-12:00:00 --wait 90s"
	got := run(t, r, "", strings.Fields(args)...)
	if got.code != api.ExitOK || !strings.Contains(body.String(), `"wait":"1m30s","gpus":["4","`+gpu1+`"],"max_time":"36h"`) {
		t.Errorf("exit code %d, it requests %s\n%s", got.code, body.String(), got.all)
	}
}
