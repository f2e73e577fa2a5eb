package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// The daemon gets the authority of the options, and no more.
func TestApplyRequests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("version: v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"apply -f -":                             "?file=-  typed\n",
		"apply -f FILE":                          "?file=FILE  version: v1\n",
		"apply -f - --check --diff":              "?check=1&diff=1&file=-  typed\n",
		"apply -f - --force":                     "?file=-&force=1  typed\n",
		"apply -f - --allow-reset":               "?allow-reset=1&file=-  typed\n",
		"apply -f - --if-generation 0":           "?file=- \"0\" typed\n",
		"apply -f - --if-generation 7 --json":    "?file=- \"7\" typed\n",
		"plan -f FILE":                           "?check=1&file=FILE  version: v1\n",
		"plan -f - --force --allow-reset --diff": "?allow-reset=1&check=1&diff=1&file=-&force=1  typed\n",
	} {
		t.Run(args, func(t *testing.T) {
			got := ""
			r := routes{"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				b, _ := io.ReadAll(q.Body)
				got = "?" + strings.ReplaceAll(q.URL.RawQuery, strings.ReplaceAll(file, "/", "%2F"), "FILE") + " " + q.Header.Get(
					"If-Match",
				) + " " + string(b)
				_ = json.NewEncoder(w).Encode(api.ApplyResult{Plan: api.Plan{Empty: true}})
			})}
			res := run(t, r, "typed\n", strings.Fields(strings.ReplaceAll(args, "FILE", file))...)
			if res.code != 0 || got != want {
				t.Errorf("exit code %d, requested %q, want %q\n%s", res.code, got, want, res.err)
			}
		})
	}
}

// A document that is too large is passed on far enough for the daemon to refuse it, and no further.
func TestApplyOfAHugeDocument(t *testing.T) {
	got := 0
	r := routes{"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		got = len(b)
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(
			map[string]any{"error": api.Error{Kind: api.KindInvalid, Message: "the document is larger than 1 MiB"}},
		)
	})}
	if res := run(t, r, strings.Repeat("x", 5<<20), "apply", "-f", "-"); res.code != api.ExitUsage || got != 1<<20+1 {
		t.Errorf("exit code %d after %d bytes", res.code, got)
	}
}

// An apply names the GPUs that it left as they are, and the command that tries them again, and exits with 6; a plan warns.
func TestApplyWithAGPUThatDoesNotAnswer(t *testing.T) {
	held := []api.HeldGPU{{GPU: gpu1, Index: 1, Reason: "the GPU is lost", Command: "gpushare gpu retry 1"}}
	plan := labPlan()
	plan.Held = held
	op := operation("degraded", &api.Error{
		Kind: api.KindDegraded, Message: "the change is incomplete: GPU 1 is held, because it does not answer: the GPU is lost",
		Hint: "a held GPU is changed when it answers again; 'gpushare gpu retry 1' tries it",
	})
	for _, c := range []struct {
		golden, args string
		routes       routes
		code         int
	}{
		{"apply-unanswered-same", "apply -f -", routes{"PUT /v1/spec": api.ApplyResult{Generation: 7, Plan: api.Plan{Empty: true, Held: held}}}, 6},
		{"apply-unanswered-same-json", "apply -f - --json", routes{"PUT /v1/spec": api.ApplyResult{Generation: 7, Plan: api.Plan{Empty: true, Held: held}}}, 6},
		{"apply-unanswered", "apply -f -", applying(op), 6},
		{"apply-unanswered-check", "apply -f - --check", routes{"PUT /v1/spec": api.ApplyResult{Generation: 8, Checked: true, Changed: true, Plan: plan}, "GET /v1/status": labNode()}, 0},
		{"plan-unanswered", "plan", routes{"GET /v1/plan": plan, "GET /v1/status": labNode()}, 0},
	} {
		t.Run(c.golden, func(t *testing.T) {
			r := run(t, c.routes, "version: v1\n", strings.Fields(c.args)...)
			if r.code != c.code {
				t.Errorf("exit code %d, want %d", r.code, c.code)
			}
			compare(t, c.golden, fmt.Sprintf("$ gpushare %s\n%s── standard error\n%s── exit code %d\n", c.args, r.out, r.err, r.code))
		})
	}
}

// An apply with --wait that comes while another change is under way waits for the end of that, and is sent again.
func TestApplyWaitsForAnotherChange(t *testing.T) {
	conflict := &api.Error{Kind: api.KindConflict, Message: "another change is under way: op-1", Hint: "wait", Operation: "op-1"}
	ended := noon
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"it is refused without", []string{"apply", "-f", "-"}, api.ExitConflict, "another change is under way"},
		{"it waits", []string{"apply", "-f", "-", "--wait"}, 0, "waiting for op-1"},
		{"it waits with a limit", []string{"apply", "-f", "-", "--wait", "1m"}, 0, "generation 8 is in force"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := 0
			r := routes{
				"GET /v1/operations/op-1": api.Operation{ID: "op-1", State: "done", Finished: &ended},
				"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if sent++; sent < 3 {
						w.WriteHeader(http.StatusConflict)
						_ = json.NewEncoder(w).Encode(map[string]any{"error": conflict})
						return
					}
					_ = json.NewEncoder(w).Encode(api.ApplyResult{Generation: 8, Changed: true})
				}),
			}
			if got := run(t, r, "version: v1\n", c.args...); got.code != c.code || !strings.Contains(got.all, c.says) {
				t.Errorf("exit code %d:\n%s", got.code, got.all)
			}
		})
	}
}

// A plan has no operation to wait for. A change that has ended and stays open is not waited for, and no wait is without a pause.
func TestApplyWaitsForAPlanAndNotForever(t *testing.T) {
	ended := noon
	for _, c := range []struct {
		name     string
		conflict *api.Error
		refused  int // attempts
		op       api.Operation
		code     int
		says     string
		attempts int64
	}{
		{"a plan", &api.Error{Message: "another change is under way", Planning: true}, 2, api.Operation{}, 0, "waiting: another change is being planned", 3},
		{"a conflict without a change", &api.Error{Message: "other"}, 1, api.Operation{}, api.ExitConflict, "other", 1},
		{
			"it exceeded its time", &api.Error{Message: "another change is under way: op-1", Operation: "op-1"}, 100,
			api.Operation{ID: "op-1", State: "failed", Finished: &ended},
			api.ExitConflict, "op-1; it has ended and is not finished", 3,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.conflict.Kind = api.KindConflict
			sent := new(atomic.Int64)
			r := routes{
				"GET /v1/operations/op-1": c.op,
				"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if sent.Add(1) <= int64(c.refused) {
						w.WriteHeader(http.StatusConflict)
						_ = json.NewEncoder(w).Encode(map[string]any{"error": c.conflict})
						return
					}
					_ = json.NewEncoder(w).Encode(api.ApplyResult{Generation: 8, Changed: true})
				}),
			}
			began := time.Now()
			got := run(t, r, "version: v1\n", "apply", "-f", "-", "--wait")
			if got.code != c.code || !strings.Contains(got.all, c.says) || sent.Load() != c.attempts {
				t.Errorf("%d attempts, exit code %d:\n%s", sent.Load(), got.code, got.all)
			}
			if duration := time.Since(began); duration < time.Duration(c.attempts-1)*200*time.Millisecond {
				t.Errorf("%d attempts in %s: there was no pause between them", c.attempts, duration)
			}
		})
	}
}

// An unmanage without a step that could not read everything is not done, in text and in JSON.
func TestUnmanageThatCannotReadEverything(t *testing.T) {
	unread := api.Unreachable{
		Reason: "cannot read whether logins have access to managed GPUs: permission denied",
		Hint:   "'gpushare doctor' has more",
	}
	for _, changed := range []bool{false, true} {
		r := routes{
			"POST /v1/unmanage": api.ApplyResult{Changed: changed, Plan: api.Plan{Empty: true, Unreachable: []api.Unreachable{unread}}},
		}
		for _, args := range [][]string{{"unmanage"}, {"unmanage", "--json"}} {
			got := run(t, r, "", args...)
			if got.code != api.ExitDegraded || strings.Count(got.err, unread.Reason) != 1 || strings.Contains(got.out, "done: ") {
				t.Errorf("changed %v, %s: exit code %d:\n%s", changed, args, got.code, got.all)
			}
		}
	}
}
