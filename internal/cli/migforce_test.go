package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// What only --force destroys is refused without it, with what leads on, and is marked with its reason in a plan with it.
func TestThePlanSaysWhatNeedsForce(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*api.MIGInstance)
		reason   string // without --force; empty: it is planned
		hint     string
		needs    string // with --force
		feasible bool   // with --force
	}{
		{name: "idle", change: func(*api.MIGInstance) {}, feasible: true},
		{
			name: "in use", change: func(in *api.MIGInstance) { in.InUse = true }, feasible: true,
			reason: "3g.20gb of 2c+1c at 4 is in use and would have to be destroyed", needs: "it is in use",
			hint: "--force plans with what is in the way destroyed, and an apply of it needs --force too",
		},
		{
			name: "foreign", change: func(in *api.MIGInstance) { in.Foreign = true }, feasible: true,
			reason: "not managed by gpushare", needs: "it is not managed by gpushare",
			hint: "'gpushare mig remove 0 4' removes what gpushare does not manage; --force plans",
		},
		{
			name: "it could not be created again", feasible: true,
			change: func(in *api.MIGInstance) { in.Irreversible = "the driver reports nothing of it" },
			reason: "cannot destroy 3g.20gb of 2c+1c at 4: it could not be created again, because the driver reports nothing of it",
			hint:   "--force plans", needs: "it could not be created again, because the driver reports nothing of it",
		},
		{
			name: "a process that --force does not stop", change: func(in *api.MIGInstance) { in.InUse, in.Kept = true, true },
			reason: "is pinned",
		},
		{name: "imported", change: func(in *api.MIGInstance) { in.Imported = true }, feasible: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := labMIG()
			c.change(&node.GPUs[0].Instances[1])
			if c.name != "in use" && c.name != "a process that --force does not stop" {
				node.GPUs[0].Instances[1].InUse = false
			}
			r := routes{"GET /v1/mig": node}
			args := []string{"mig", "plan", "--gpu", "0", "--want", "1g.5gb*7"}
			plain := run(t, r, "", args...)
			if refused := c.reason != ""; refused != (plain.code == api.ExitInfeasible) || !strings.Contains(plain.err, c.reason) {
				t.Errorf("exit code %d, want %q:\n%s", plain.code, c.reason, plain.all)
			}
			if !strings.Contains(plain.err, c.hint) || c.hint == "" && strings.Contains(plain.err, "--force") {
				t.Errorf("the hint is not %q:\n%s", c.hint, plain.err)
			}
			forced := run(t, r, "", append(args, "--force", "--json")...)
			var out struct {
				Feasible bool
				Steps    []struct {
					Kind       string
					NeedsForce string `json:"needs_force"`
				}
			}
			if err := json.Unmarshal([]byte(forced.out), &out); err != nil || out.Feasible != c.feasible {
				t.Fatalf("%v\n%s", err, forced.all)
			}
			if c.feasible && (out.Steps[0].Kind != "destroy" || out.Steps[0].NeedsForce != c.needs) {
				t.Errorf("the steps are %+v, want %q", out.Steps, c.needs)
			}
			text := run(t, r, "", append(args, "--force")...).out
			if strings.Contains(text, "needs --force: "+c.needs) != (c.needs != "") {
				t.Errorf("the plan is\n%s", text)
			}
		})
	}
	// One that was imported stays where it is not in the way.
	node := labMIG()
	node.GPUs[0].Instances[1].InUse, node.GPUs[0].Instances[1].Imported = false, true
	if got := run(
		t,
		routes{"GET /v1/mig": node},
		"",
		"mig",
		"plan",
		"--gpu",
		"0",
		"--want",
		"1g.5gb",
	); strings.Contains(
		got.out,
		"destroy",
	) {
		t.Errorf("the plan is\n%s", got.out)
	}
}
