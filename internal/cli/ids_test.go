package cli_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// noneOf refuses as the daemon does what has no such id.
func noneOf(what string) *api.Error {
	return &api.Error{Kind: api.KindNotFound, Message: "there is no such " + what, Hint: "list them"}
}

// Every command takes the beginning of an id that tables show, if it begins nothing else, and sends the id in full.
func TestIDsByTheirBeginning(t *testing.T) {
	status := labNode()
	leases := api.LeaseList{SchemaVersion: 1}
	for _, id := range []string{"vision-train-x7k2", "vision-train-k8qg", "speech-serve-0042"} {
		leases.Leases = append(leases.Leases, api.Lease{ID: id, State: api.LeaseRunning})
	}
	status.Leases = leases.Leases
	status.Node.Conditions[0].ID, status.Node.Conditions[1].ID = "held-3f9a21c0", "drift-77aa0102"
	done := operation("done", nil)[2]
	ok := struct{}{}
	for args, c := range map[string]struct {
		sent, missing string
		answer        any
		says          string
	}{
		"lease show vision-train-x": {says: "vision-train-x7k2"},
		"lease stop vision-train-x": {"DELETE /v1/leases/vision-train-x7k2", "DELETE /v1/leases/vision-train-x", ok, "stopped vision-train-x7k2"},
		"lease stop --json vision-train-x": {
			"DELETE /v1/leases/vision-train-x7k2", "DELETE /v1/leases/vision-train-x", ok, `"stopped": "vision-train-x7k2"`,
		},
		"lease release speech":            {"POST /v1/leases/speech-serve-0042/release", "POST /v1/leases/speech/release", ok, "released speech-serve-0042"},
		"lease logs spee":                 {"GET /v1/leases/speech-serve-0042/logs", "GET /v1/leases/spee/logs", ok, ""},
		"operation show op-1":             {"GET /v1/operations/op-13", "GET /v1/operations/op-1", done, "op-13"},
		"operation wait op-1":             {"GET /v1/operations/op-13", "GET /v1/operations/op-1", done, "done"},
		"condition ack held":              {"POST /v1/conditions/held-3f9a21c0/ack", "POST /v1/conditions/held/ack", acknowledgedResult(true), "held-3f9a21c0"},
		"condition unack held-3f":         {"POST /v1/conditions/held-3f9a21c0/unack", "POST /v1/conditions/held-3f/unack", acknowledgedResult(false), "held-3f9a21c0"},
		"gpu show GPU-cd5d2d71":           {says: "1 (" + gpu1 + ")"},
		"gpu cordon GPU-cd5d2d71":         {sent: "POST /v1/gpus/" + gpu1 + "/cordon", answer: api.CordonResult{Index: 1, GPU: gpu1, Cordoned: &api.Cordon{}}, says: "GPU 1 is cordoned"},
		"gpu uncordon GPU-cd5d":           {sent: "POST /v1/gpus/" + gpu1 + "/uncordon", answer: api.CordonResult{Index: 1, GPU: gpu1}, says: "GPU 1 was not cordoned"},
		"gpu drain GPU-cd5d":              {sent: "POST /v1/gpus/" + gpu1 + "/cordon", answer: api.CordonResult{Index: 1, GPU: gpu1}, says: "done: GPU 1"},
		"gpu retry GPU-cd5d":              {sent: "POST /v1/gpus/" + gpu1 + "/retry", answer: done, says: "done"},
		"mps drain GPU-f02b5553":          {sent: "POST /v1/mps/" + gpu2 + "/drain", answer: api.MPSDrainResult{}, says: "MPS"},
		"mps resume GPU-f02b5553:4":       {sent: "POST /v1/mps/" + gpu2 + ":4/resume", answer: api.MPSDrainResult{}, says: "MPS"},
		"mps log MIG-707c4333":            {sent: "GET /v1/mps/" + mig4 + "/log", answer: api.MPSLog{}, says: "no lines"},
		"mig import GPU-5f01 4":           {sent: "POST /v1/mig/import", answer: api.ApplyResult{Plan: api.Plan{Empty: true}}, says: "no changes"},
		"status --gpu GPU-cd5d2d71":       {says: "lab"},
		"lease stop --gpu GPU-f02b --yes": {sent: "GET /v1", answer: api.Info{Caller: api.Caller{Role: "admin"}}, says: "no lease to stop"},
	} {
		t.Run(args, func(t *testing.T) {
			r := routes{"GET /v1/status": status, "GET /v1/leases": leases, "GET /v1/operations": labOperations()}
			received := false
			if c.sent != "" {
				r[c.sent] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					received = true
					_ = json.NewEncoder(w).Encode(c.answer)
				})
			}
			if c.missing != "" {
				r[c.missing] = noneOf("one")
			}
			got := run(t, r, "", strings.Fields(args)...)
			if got.code != api.ExitOK || received != (c.sent != "") || !strings.Contains(got.out, c.says) {
				t.Errorf("exit code %d, the daemon received it: %v, want %q:\n%s", got.code, received, c.says, got.all)
			}
		})
	}
}

// A beginning of several ids, or one that is too short, changes nothing.
func TestAmbiguousBeginnings(t *testing.T) {
	refused := func(w http.ResponseWriter, q *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": noneOf("one: " + q.URL.Path)})
	}
	leases := api.LeaseList{SchemaVersion: 1}
	for _, id := range slices.Repeat([]string{"vision-train-x7k2", "vision-train-k8qg"}, 2) {
		leases.Leases = append(leases.Leases, api.Lease{ID: id, State: api.LeaseRunning})
	}
	for id, c := range map[string]struct {
		code int
		says string
	}{
		"vision":  {api.ExitUsage, `"vision" begins several leases: vision-train-x7k2, vision-train-k8qg`},
		"vis":     {api.ExitFailed, "there is no such one"},
		"nothing": {api.ExitFailed, "there is no such one"},
	} {
		r := routes{"GET /v1/leases": leases, "DELETE /v1/leases/" + id: http.HandlerFunc(refused)}
		got := run(t, r, "", "lease", "stop", id)
		if got.code != c.code || got.out != "" || !strings.Contains(got.err, c.says) {
			t.Errorf("stop %s: exit code %d, want %d with %q:\n%s", id, got.code, c.code, c.says, got.all)
		}
	}
	two := labNode()
	two.GPUs[2].UUID = gpu1[:12] + "-f85f-5547-a382-ce18461d92fa" + "0000"
	got := run(t, routes{"GET /v1/status": two}, "", "gpu", "cordon", "GPU-cd5d")
	if got.code != api.ExitUsage || !strings.Contains(got.err, "begins several GPUs") {
		t.Errorf("exit code %d:\n%s", got.code, got.all)
	}
}
