package cli_test

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

func TestExitCodes(t *testing.T) {
	want := map[api.Kind]int{
		api.KindNotFound: 1, api.KindInternal: 1, api.KindInvalid: 2, api.KindUnavailable: 3, api.KindDenied: 4,
		api.KindConflict: 5, api.KindInUse: 5, api.KindDegraded: 6, api.KindInfeasible: 7, api.KindNeedsPermission: 8,
		"of-a-newer-daemon": 1,
	}
	for _, kind := range append(api.Kinds(), "of-a-newer-daemon") {
		t.Run(string(kind), func(t *testing.T) {
			code, known := want[kind]
			if !known {
				t.Fatal("no exit code is promised for this kind")
			}
			refusal := &api.Error{Kind: kind, Message: "it is so", Hint: "do this"}
			r := run(t, routes{"GET /v1/spec": refusal}, "", "get")
			if r.code != code || r.out != "" || r.err != "gpushare: it is so\nhint: do this\n" {
				t.Errorf("exit code %d, want %d:\n%s%s", r.code, code, r.out, r.err)
			}
			r = run(t, routes{"GET /v1/spec": refusal}, "", "get", "--json")
			var reported struct {
				SchemaVersion int       `json:"schema_version"`
				ExitCode      int       `json:"exit_code"`
				Error         api.Error `json:"error"`
			}
			if err := json.Unmarshal([]byte(r.err), &reported); err != nil || r.out != "" {
				t.Fatalf("with --json it is %v:\n%s%s", err, r.out, r.err)
			}
			if r.code != code || reported.ExitCode != code || reported.SchemaVersion != 1 || reported.Error.Kind != kind ||
				reported.Error.Hint != "do this" {
				t.Errorf("with --json the exit code is %d: %+v", r.code, reported)
			}
		})
	}
}

func TestExitCodesOfVerbs(t *testing.T) {
	well, ill := emptyNode(), labNode()
	unreachable := api.Plan{
		Empty: true,
		Unreachable: []api.Unreachable{
			{GPU: gpu1, Reason: "7g.40gb at 0 is not managed by gpushare", Hint: "'gpushare mig remove 1 0' removes it"},
		},
	}
	partly := labPlan()
	partly.Unreachable = unreachable.Unreachable
	for name, c := range map[string]struct {
		routes routes
		args   string
		code   int
	}{
		"status of a healthy node":             {routes{"GET /v1/status": well}, "status --exit-code", 0},
		"status of a degraded node":            {routes{"GET /v1/status": ill}, "status --exit-code", 6},
		"status without --exit-code":           {routes{"GET /v1/status": ill}, "status", 0},
		"status as JSON":                       {routes{"GET /v1/status": ill}, "status --json --exit-code", 6},
		"plan with steps":                      {routes{"GET /v1/plan": labPlan(), "GET /v1/status": well}, "plan --exit-code", 10},
		"plan with steps, without --exit-code": {routes{"GET /v1/plan": labPlan(), "GET /v1/status": well}, "plan", 0},
		"plan with steps, as JSON":             {routes{"GET /v1/plan": labPlan()}, "plan --exit-code --json", 10},
		"plan without steps":                   {routes{"GET /v1/plan": api.Plan{Empty: true}}, "plan --exit-code", 0},
		"plan that cannot be made":             {routes{"GET /v1/plan": unreachable}, "plan --exit-code", 11},
		"plan of a part that cannot be made":   {routes{"GET /v1/plan": partly, "GET /v1/status": well}, "plan --exit-code", 11},
		"plan without a lost GPU":              {routes{"GET /v1/plan": api.Plan{Empty: true, Held: []api.HeldGPU{{Index: 1, Reason: "the GPU is lost"}}}}, "plan --exit-code --json", 11},
		"plan that cannot be made, without it": {routes{"GET /v1/plan": unreachable}, "plan", 0},
		"plan of a driver that is not loaded":  {routes{"GET /v1/plan": &api.Error{Kind: api.KindUnavailable, Message: "the driver is not loaded"}}, "plan --exit-code", 3},
		"plan of a file that cannot be reached": {
			routes{"PUT /v1/spec": api.ApplyResult{Checked: true, Plan: unreachable}}, "plan -f - --exit-code", 11,
		},
		"apply that reaches nothing":     {routes{"PUT /v1/spec": api.ApplyResult{Generation: 7, Plan: unreachable}}, "apply -f -", 6},
		"apply that ends with a hold":    {applying(operation("degraded", nil)), "apply -f -", 6},
		"apply that ends so, as JSON":    {applying(operation("degraded", nil)), "apply -f - --json", 6},
		"apply that fails for a process": {applying(operation("failed", &api.Error{Kind: api.KindInUse, Message: "in use"})), "apply -f -", 5},
		"doctor that finds a failure":    {routes{"GET /v1/doctor": labDoctor()}, "doctor --json", 6},
		"version without a daemon":       {routes{"GET /v1": &api.Error{Kind: api.KindUnavailable, Message: "it starts"}}, "version", 3},
	} {
		t.Run(name, func(t *testing.T) {
			if r := run(t, c.routes, "version: v1\n", strings.Fields(c.args)...); r.code != c.code {
				t.Errorf("exit code %d, want %d:\n%s", r.code, c.code, r.all)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no.yaml")
	for name, c := range map[string]struct{ args, says, hint string }{
		"unknown command":             {"stauts", `unknown command "stauts" for 'gpushare'`, "did you mean 'gpushare status'?"},
		"command like no other":       {"xyzzy", `unknown command "xyzzy"`, "'gpushare --help' lists the commands"},
		"unknown verb of a noun":      {"gpu lst", `unknown command "lst" for 'gpushare gpu'`, "did you mean 'gpushare gpu list'?"},
		"verb like no other":          {"lease xyzzy", `unknown command "xyzzy" for 'gpushare lease'`, "'gpushare lease --help' lists the commands"},
		"help of nothing":             {"help gpu lst", `unknown command "lst" for 'gpushare gpu'`, "did you mean"},
		"unknown flag":                {"plan --foce", "unknown flag: --foce", "did you mean --force?"},
		"unknown global flag":         {"status --jsn", "unknown flag: --jsn", "did you mean --json?"},
		"flag like no other":          {"status --xyzzy", "unknown flag: --xyzzy", "'gpushare status --help' shows the usage"},
		"unknown short flag":          {"status -z", "unknown shorthand flag: 'z'", "'gpushare status --help' shows the usage"},
		"flag without its value":      {"apply -f", "flag needs an argument: 'f'", "'gpushare apply --help' shows the usage"},
		"value that is none":          {"apply -f - --if-generation x", "invalid argument \"x\"", "'gpushare apply --help' shows the usage"},
		"argument too many":           {"plan now", `'gpushare plan' takes no arguments, got "now"`, "--help"},
		"file as an argument":         {"apply node.yaml", "takes no arguments", "as in 'gpushare apply -f node.yaml'"},
		"file with a space":           {"apply a'b.yaml", "takes no arguments", "'gpushare apply --help'"},
		"part of the status":          {"status vision", "takes no arguments", "as in 'gpushare status --tenant vision'"},
		"part of the leases":          {"lease list vision", "takes no arguments", "as in 'gpushare lease list --tenant vision'"},
		"argument too few":            {"lease show", "'gpushare lease show' needs the id of a lease", "'gpushare lease list' shows them"},
		"no lease for its output":     {"lease logs", "needs the id of a lease", "'gpushare lease list' shows them"},
		"nothing to explain":          {"explain", "needs a lease or a tenant", "'gpushare lease list' and 'gpushare tenant list' show them"},
		"no tenant":                   {"tenant show", "needs the name of a tenant", "'gpushare tenant list' shows them"},
		"no GPU":                      {"gpu drain", "needs a GPU's index or UUID", "'gpushare gpu list' shows them"},
		"no condition":                {"condition ack", "needs the id of a condition", "'gpushare condition list' shows them"},
		"no operation":                {"operation show", "needs the id of an operation", "'gpushare operation list' shows them"},
		"no MPS":                      {"mps show", "needs a GPU's index or UUID", "'gpushare mps list' shows them"},
		"no instances":                {"mig import", "needs a GPU's index or UUID", "'gpushare gpu list' shows them"},
		"two arguments":               {"gpu retry 1 2", `needs a GPU's index or UUID, and no more: got "1" "2"`, "--help"},
		"flags that exclude":          {"lease list --all --since 1d", "if any flags in the group [all since] are set", "--help"},
		"time that is none":           {"run --time soon true", `"soon" is no duration`, "--help"},
		"apply without a file":        {"apply", "no spec given", "--help"},
		"apply of no file":            {"apply -f " + missing, "no such file", "a spec is one file, or - for standard input"},
		"check of no file":            {"spec validate " + missing, "no such file", "a spec is one file, or - for standard input"},
		"check of a directory":        {"spec validate " + filepath.Dir(missing), "is a directory", "a spec is one file, or - for standard input"},
		"apply of a directory":        {"apply -f " + filepath.Dir(missing), "is a directory", "a spec is one file, or - for standard input"},
		"GPU without a verb":          {"gpu 4", `unknown command "4"`, "'gpushare gpu show 4' shows one; 'gpushare gpu --help' lists the commands"},
		"tenant without a verb":       {"tenant vision", `unknown command "vision"`, "'gpushare tenant show vision' shows one"},
		"lease without a verb":        {"lease vision-dev-7k5z", `unknown command`, "'gpushare lease show vision-dev-7k5z' shows one"},
		"no verb that a shell splits": {"tenant a;b", "unknown command", "'gpushare tenant --help' lists the commands"},
		"run without a command":       {"run -t red", "no command given", "--help"},
		"argument of a cobra command": {"completion bash x", "unknown command", "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			r := runOn(t.Context(), missing, "", strings.Fields(c.args)...)
			lines := strings.SplitN(r.err, "\nhint: ", 2)
			if r.code != api.ExitUsage || r.out != "" || len(lines) != 2 || !strings.Contains(lines[0], c.says) ||
				!strings.Contains(lines[1], c.hint) {
				t.Errorf("exit code %d, want 2 with %q and the hint %q:\n%s", r.code, c.says, c.hint, r.all)
			}
		})
	}
}

// Text of a tenant cannot control the terminal of the reader.
func TestHostileWords(t *testing.T) {
	const evil = "x\x1b]0;owned\x07\u202e\u009b31m"
	s := labNode()
	s.Leases[0].Command, s.Leases[0].User, s.Leases[0].Notices = []string{evil + "\nfake line"}, evil, []string{evil}
	s.Node.Conditions[0].Message, s.Tenants[0].Grants[0].Text = evil, evil
	p := labPlan()
	p.Disturbs, p.Warnings, p.Steps[0].Text, p.Steps[0].Reason = []string{evil}, []string{evil}, evil, evil
	o := operation(
		"failed", &api.Error{Kind: api.KindInUse, Message: evil, Hint: evil, Fields: []api.FieldError{{Message: evil, Hint: evil}}},
	)
	o[2].Plan.Steps[2].Error, o[1].Plan.Steps[2].WaitsFor = evil, evil
	applied := applying(o)
	for args, r := range map[string]routes{
		"status": {"GET /v1/status": s}, "lease list": {"GET /v1/status": s}, "lease show vision-3kq6": {"GET /v1/status": s}, "tenant list": {"GET /v1/status": s},
		"plan": {"GET /v1/plan": p, "GET /v1/status": s}, "apply -f -": applied, "lease stop x": {"DELETE /v1/leases/x": o[2].Error},
		"doctor":                   {"GET /v1/doctor": api.Doctor{Checks: []api.Check{{Name: "n", Result: "ok", Message: evil, Hint: evil}}}},
		"events":                   {"GET /v1/events": emitting(api.Event{Kind: evil, Tenant: evil, Message: evil})},
		"__complete lease stop ''": {"GET /v1/status": s},
	} {
		t.Run(args, func(t *testing.T) {
			got := run(t, r, "version: v1\n", strings.Fields(strings.ReplaceAll(args, "''", ""))...)
			if strings.ContainsAny(got.all, "\x1b\x07\u202e\u009b") || strings.Contains(got.all, "\nfake line") {
				t.Errorf("it gets through: %q", got.all)
			}
		})
	}
}

// Ctrl-C while a change is waited for says what becomes of the change.
func TestInterruptedApply(t *testing.T) {
	versions := operation("done", nil)
	ctx, cancel := context.WithCancel(t.Context())
	r := applying(versions)
	r["GET /v1/operations/op-13"] = http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		cancel()
		<-q.Context().Done()
	})
	got := runOn(ctx, fakeDaemon(t, r), "version: v1\n", "apply", "-f", "-")
	if got.code != 130 || !strings.Contains(got.err, "interrupted") || !strings.Contains(got.err, "continues without this command") {
		t.Errorf("exit code %d:\n%s", got.code, got.err)
	}
}

// A daemon that goes while a change is waited for has not forgotten it.
func TestDaemonGoesDuringApply(t *testing.T) {
	r := applying(operation("done", nil))
	r["GET /v1/operations/op-13"] = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for _, args := range []string{"apply -f -", "apply -f - --json"} {
		got := run(t, r, "version: v1\n", strings.Fields(args)...)
		if got.code != api.ExitUnreachable || !strings.Contains(got.err, "gpushared finishes or undoes the change") {
			t.Errorf("%s: exit code %d:\n%s", args, got.code, got.err)
		}
	}
}
