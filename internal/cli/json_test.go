package cli_test

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// jsonless are commands that become another program, whose output is for a shell, a person or Prometheus, or is JSON of another
// format.
var jsonless = []string{
	"gpushare run",
	"gpushare spec schema",
	"gpushare lease logs",
	"gpushare metrics",
	"gpushare top",
	"gpushare slurm prolog", // Slurm runs it, and reads its exit code, or the lines of a TaskProlog
	"gpushare slurm task-prolog",
	"gpushare slurm health",
	"gpushare help",
	"gpushare completion bash",
	"gpushare completion fish",
	"gpushare completion powershell",
	"gpushare completion zsh",
}

func verbs(t *testing.T) []*cobra.Command {
	t.Helper()
	root := cli.Root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var out []*cobra.Command
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if !c.HasSubCommands() {
			out = append(out, c)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	if len(out) < 15 {
		t.Fatalf("only %d verbs", len(out))
	}
	return out
}

func TestEveryVerbHasJSON(t *testing.T) {
	status := routes{"GET /v1/status": labNode()}
	empty := routes{"GET /v1/status": emptyNode()}
	retried := operation("done", nil)
	plain := func() *api.Operation { o := retried[2]; return o }
	cases := map[string][]struct {
		routes routes
		args   string
	}{
		"gpushare status":       {{status, ""}, {empty, ""}},
		"gpushare history":      {{routes{"GET /v1/history": labHistory()}, ""}, {routes{"GET /v1/history/7": labRevision(7, "mps")}, "7"}},
		"gpushare rollback":     {{rollingBack("6", "8"), ""}},
		"gpushare gpu list":     {{status, ""}, {empty, ""}},
		"gpushare gpu show":     {{status, "1"}, {status, "0"}},
		"gpushare gpu cordon":   {{routes{"POST /v1/gpus/1/cordon": api.CordonResult{SchemaVersion: 1}}, "1"}},
		"gpushare gpu uncordon": {{routes{"POST /v1/gpus/1/uncordon": api.CordonResult{SchemaVersion: 1}}, "1"}},
		"gpushare maintenance": {
			{routes{"GET /v1/maintenance": api.MaintenanceResult{SchemaVersion: 1}}, ""},
			{
				routes{
					"POST /v1/maintenance": api.MaintenanceResult{SchemaVersion: 1},
					"GET /v1/maintenance":  api.MaintenanceResult{SchemaVersion: 1, Maintenance: &api.Maintenance{By: "root"}},
				},
				"on",
			},
			{routes{"POST /v1/maintenance/off": api.MaintenanceResult{SchemaVersion: 1}}, "off"},
		},
		"gpushare gpu drain": {
			{routes{"POST /v1/gpus/1/cordon": api.CordonResult{SchemaVersion: 1, GPU: gpu1}, "GET /v1/status": emptyNode()}, "1"},
		},
		"gpushare mig list": {{status, ""}, {empty, ""}},
		"gpushare mig plan": {{nil, "--offline --model a30 --want 1g.6gb"}, {nil, "--offline --model a30 --want 4g.24gb*2"}},
		"gpushare mig frag": {
			{routes{"GET /v1/mig": labMIG()}, ""},
			{routes{"GET /v1/mig": api.MIGList{}}, ""},
			{nil, "--offline --model a30"},
		},
		"gpushare mig convert":     {{nil, "migparted/testdata/mixed.yaml"}, {nil, "migparted/testdata/mixed.yaml --label off"}},
		"gpushare mig export":      {{routes{"GET /v1/mig": labMIG()}, ""}, {routes{"GET /v1/mig": api.MIGList{}}, ""}},
		"gpushare mig profiles":    {{nil, "--model a30"}, {nil, "--offline"}},
		"gpushare mps list":        {{status, ""}, {empty, ""}},
		"gpushare mps show":        {{routes{"GET /v1/mps/1": labMPS()}, "1"}},
		"gpushare mps log":         {{routes{"GET /v1/mps/1/log": api.MPSLog{SchemaVersion: 1}}, "1"}},
		"gpushare mps restart":     {{routes{"POST /v1/mps/1/restart": api.ApplyResult{Checked: true, Plan: mpsRestart()}}, "1 --check"}},
		"gpushare mps drain":       {{routes{"POST /v1/mps/1/drain": api.MPSDrainResult{SchemaVersion: 1}}, "1"}},
		"gpushare mps resume":      {{routes{"POST /v1/mps/1/resume": api.MPSDrainResult{SchemaVersion: 1}}, "1"}},
		"gpushare condition list":  {{status, ""}, {empty, ""}},
		"gpushare condition ack":   {{routes{"POST /v1/conditions/held-3f9a21c0/ack": acknowledgedResult(true)}, "held-3f9a21c0"}},
		"gpushare condition unack": {{routes{"POST /v1/conditions/held-3f9a21c0/unack": acknowledgedResult(false)}, "held-3f9a21c0"}},
		"gpushare tenant list":     {{status, ""}, {empty, ""}},
		"gpushare tenant show":     {{status, "vision"}},
		"gpushare tenant freeze":   {{routes{"POST /v1/tenants/vision/freeze": frozenTenant()}, "vision"}},
		"gpushare tenant thaw": {
			{routes{"POST /v1/tenants/vision/thaw": api.TenantFreezeResult{SchemaVersion: 1, Tenant: "vision"}}, "vision"},
		},
		"gpushare lease list": {
			{status, ""},
			{empty, ""},
			{routes{"GET /v1/status": labNode(), "GET /v1/leases": endedLeases()}, "--all"},
			{routes{"GET /v1/leases": accountedLeases()}, "--since 1d"},
		},
		"gpushare lease show": {
			{status, "vision-3kq6"},
			{routes{"GET /v1/status": labNode(), "GET /v1/leases": endedLeases()}, "vision-77aa"},
			{
				routes{
					"GET /v1/engine/leases/slurm:lab:42:0": keyedLease().Lease,
					"GET /v1/status":                       labNode(),
					"GET /v1/leases":                       endedLeases(),
				},
				"--key slurm:lab:42:0",
			},
		},
		"gpushare lease stop": {{routes{"DELETE /v1/leases/vision-3kq6": struct{}{}}, "vision-3kq6"}},
		"gpushare lease attach": {
			{routes{"POST /v1/leases/attach": attached()}, "--pid 4711"},
			{routes{"POST /v1/engine/leases": keyedLease()}, "--key slurm:lab:42:0 --user alice --gpu-memory 12GiB --share 10%"},
		},
		"gpushare lease release": {
			{routes{"POST /v1/leases/vision-3kq6/release": struct{}{}}, "vision-3kq6"},
			{routes{"DELETE /v1/engine/leases/slurm:lab:42:0": map[string]string{"released": "vision-dev-9"}}, "--key slurm:lab:42:0"},
			{
				routes{
					"POST /v1/leases/vision-gone/release": &api.Error{
						Kind:    api.KindNotFound,
						Message: "there is no lease \"vision-gone\" that you may release",
						Hint:    "see 'gpushare lease list'",
					},
					"GET /v1/leases": api.LeaseList{},
				},
				"vision-gone --missing-ok",
			},
		},
		"gpushare usage": {{routes{"GET /v1/usage": labUsage()}, "--by tenant,user"}},
		"gpushare plan":  {{routes{"GET /v1/plan": labPlan()}, ""}},
		"gpushare apply": {
			{applying(operation("done", nil)), "-f -"},
			{applying(operation("done", nil)), "-f - --no-wait"},
			{routes{"PUT /v1/spec": api.ApplyResult{Plan: api.Plan{SchemaVersion: 1, Empty: true}}}, "-f - --check"},
		},
		"gpushare unmanage": {
			{releasing(operation("done", nil)), "--all"},
			{routes{"POST /v1/unmanage": api.ApplyResult{Plan: api.Plan{SchemaVersion: 1, Empty: true}}}, ""},
			{routes{"POST /v1/unmanage": api.ApplyResult{Checked: true, Plan: labPlan()}}, "--check"},
		},
		"gpushare mig import": {
			{routes{"POST /v1/mig/import": api.ApplyResult{Plan: api.Plan{SchemaVersion: 1, Empty: true}, Changed: true}}, "0 4"},
		},
		"gpushare mig remove": {{routes{"POST /v1/mig/remove": api.ApplyResult{Checked: true, Plan: labPlan()}}, "0 4 --check"}},
		"gpushare gpu retry":  {{routes{"POST /v1/gpus/3/retry": plain()}, "3"}},
		"gpushare operation list": {
			{routes{"GET /v1/operations": labOperations()}, ""},
			{routes{"GET /v1/operations": api.OperationList{SchemaVersion: 1}}, ""},
		},
		"gpushare operation show": {{routes{"GET /v1/operations/op-13": plain()}, "op-13"}},
		"gpushare operation wait": {{applying(operation("done", nil)), "op-13"}},
		"gpushare ready":          {{routes{"GET /v1/status": emptyNode()}, ""}},
		"gpushare get":            {{routes{"GET /v1/spec": api.SpecDocument{Generation: 7, YAML: "version: v1\n"}}, ""}},
		"gpushare env": {
			{routes{"GET /v1/env": api.Environment{Environment: map[string]string{}}}, ""},
			{routes{"GET /v1/env": api.Environment{Environment: map[string]string{}, Podman: []string{"--cgroups=disabled"}}}, "--podman"},
			{routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{Role: "admin"}}}, "--cdi"},
		},
		"gpushare explain": {{routes{"GET /v1/explain": explained()}, "vision-3kq6"}},
		"gpushare idle":    {{routes{"GET /v1/idle": labIdle()}, ""}, {routes{"GET /v1/idle": api.Idle{SchemaVersion: 1}}, "--for 2h"}},
		"gpushare doctor":  {{routes{"GET /v1/doctor": labDoctor()}, ""}},
		"gpushare version": {{routes{"GET /v1": api.Info{API: "v1", Version: "x"}}, ""}},
		"gpushare audit": {
			{routes{"GET /v1/audit/verify": api.AuditVerification{SchemaVersion: 1}}, "--verify"},
			{routes{"GET /v1/audit": emitting(labAudit()...)}, ""},
		},
		"gpushare slurm gres":      {{routes{"GET /v1/status": labNode()}, "--node node1"}},
		"gpushare slurm check":     {{routes{"GET /v1/status": labNode()}, "--node node1"}},
		"gpushare slurm install":   {{nil, "--dry-run --dir " + siteDir(t)}, {nil, "--dir " + siteDir(t)}},
		"gpushare slurm uninstall": {{nil, "--dir " + siteDir(t)}},
		"gpushare events":          {{routes{"GET /v1/events": emitting(labEvents()...)}, ""}},
		"gpushare config reload":   {{routes{"POST /v1/reload": struct{}{}}, ""}},
		"gpushare spec validate":   {{nil, "-"}},
	}
	for _, c := range verbs(t) {
		verb := c.CommandPath()
		if slices.Contains(jsonless, verb) {
			continue
		}
		if len(cases[verb]) == 0 {
			t.Errorf("no test reads the JSON of '%s'", verb)
		}
		for _, k := range cases[verb] {
			t.Run(strings.TrimSpace(verb+" "+k.args), func(t *testing.T) {
				args := append(strings.Fields(verb)[1:], strings.Fields(k.args)...)
				r := run(t, k.routes, "version: v1\n", append(args, "--json")...)
				n := 0
				for d := json.NewDecoder(strings.NewReader(r.out)); ; n++ {
					var out map[string]any
					if err := d.Decode(&out); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						t.Fatalf("no JSON: %v\n%s%s", err, r.out, r.err)
					}
					if out["at"] == nil && out["schema_version"] != 1.0 && out["version"] != "v1" {
						t.Errorf("it has no version:\n%s", r.out)
					}
					for key, v := range out {
						if v == nil {
							t.Errorf("%s is null: a list without elements is []", key)
						}
					}
				}
				want := 1
				switch {
				case verb == "gpushare events":
					want = len(labEvents())
				case verb == "gpushare audit" && k.args == "":
					want = len(labAudit())
				}
				if n != want {
					t.Errorf("%d objects, want %d:\n%s%s", n, want, r.out, r.err)
				}
			})
		}
	}
}

func TestHelp(t *testing.T) {
	for _, c := range verbs(t) {
		if strings.HasPrefix(c.CommandPath(), "gpushare completion") {
			continue // These are cobra's own.
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("'%s' is described as %q", c.CommandPath(), c.Short)
		}
		if c.Parent().Parent() == nil && c.Name() != "help" && c.Example == "" {
			t.Errorf("'%s' has no example", c.CommandPath())
		}
		for _, line := range strings.Split(c.Example, "\n") {
			if line != "" && !strings.HasPrefix(line, "  ") {
				t.Errorf("the examples of '%s' are not indented: %q", c.CommandPath(), line)
			}
		}
		r := runOn(t.Context(), "/nowhere", "", append(strings.Fields(c.CommandPath())[1:], "--help")...)
		if r.code != 0 || r.err != "" || !strings.Contains(r.out, "Usage:") {
			t.Errorf("the help of '%s' exits with %d:\n%s", c.CommandPath(), r.code, r.all)
		}
	}
	for _, noun := range cli.Root().Commands() {
		if noun.Short == "" {
			t.Errorf("'%s' is not described", noun.CommandPath())
		}
		if !noun.HasSubCommands() {
			continue // 'ready' would wait for the daemon.
		}
		if r := runOn(t.Context(), "/nowhere", "", noun.Name()); r.code != 0 || !strings.Contains(r.out, "Available Commands:") {
			t.Errorf("'%s' alone exits with %d:\n%s", noun.CommandPath(), r.code, r.all)
		}
	}
}
