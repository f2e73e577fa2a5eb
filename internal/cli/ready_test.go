package cli_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// What a node is waited for, and what ends the wait.
func TestWhatANodeIsWaitedFor(t *testing.T) {
	gpu := func(mode, state, reason string) api.GPUStatus {
		return api.GPUStatus{UUID: "GPU-1", Index: 1, Mode: mode, State: state, Reason: reason}
	}
	on := api.NodeStatus{Enforce: "on", Generation: 3}
	about := on
	about.Conditions = []api.Condition{{Kind: "inventory", GPU: "GPU-1"}}
	driver := on
	driver.Conditions = []api.Condition{{Kind: "driver", Message: "the driver is not loaded"}}
	starting := driver
	starting.Starting = true
	for _, c := range []struct {
		name string
		node api.NodeStatus
		gpus []api.GPUStatus
		want string // what is waited for
		held string
	}{
		{name: "as the spec says", node: on, gpus: []api.GPUStatus{gpu(api.ModeMIG, "ok", "")}},
		{name: "the daemon starts", node: api.NodeStatus{Enforce: "on", Starting: true}, want: "has not compared"},
		{name: "the daemon starts and observes", node: api.NodeStatus{Enforce: "observe", Starting: true}, want: "has not compared"},
		{name: "layouts are restored", node: api.NodeStatus{Enforce: "on", Operation: "restore-4"}, want: "restore-4 runs"},
		{name: "it observes", node: api.NodeStatus{Enforce: "observe"}, gpus: []api.GPUStatus{gpu(api.ModeMIG, "lost", "")}},
		{name: "held", node: on, gpus: []api.GPUStatus{gpu(api.ModeMIG, "held", "it failed")}, held: "GPU 1 is held: it failed"},
		{name: "it does not answer yet", node: on, gpus: []api.GPUStatus{gpu(api.ModeMIG, "stuck", "no answer")}, want: "GPU 1 is stuck: no answer"},
		{name: "the daemon starts without a driver", node: starting, want: "the driver is not loaded"},
		{name: "no driver yet", node: driver, want: "the driver is not loaded"},
		{name: "missing", node: about, gpus: []api.GPUStatus{gpu(api.ModeMIG, "missing", "")}, want: "GPU 1 is missing"},
		{name: "missing, and optional", node: on, gpus: []api.GPUStatus{gpu(api.ModeMIG, "missing", "")}},
		{name: "cordoned", node: on, gpus: []api.GPUStatus{gpu(api.ModeMIG, "cordoned", "")}},
		{name: "of another scheduler", node: on, gpus: []api.GPUStatus{gpu(api.ModeExternal, "lost", "")}},
		{name: "unmanaged", node: on, gpus: []api.GPUStatus{gpu(api.ModeUnmanaged, "held", "")}},
	} {
		waits, held := cli.UnreadyGPUs(&api.Status{Node: c.node, GPUs: c.gpus})
		if (waits == "") != (c.want == "") || !strings.Contains(waits, c.want) || strings.Join(held, ";") != c.held {
			t.Errorf("%s: waits for %q, held %q", c.name, waits, held)
		}
	}
}

func TestReadyEnds(t *testing.T) {
	status := func(node api.NodeStatus, gpus ...api.GPUStatus) routes {
		return routes{"GET /v1/status": api.Status{SchemaVersion: 1, Node: node, GPUs: gpus}}
	}
	on := api.NodeStatus{Enforce: "on", Generation: 3}
	for _, c := range []struct {
		name string
		at   routes
		code int
		want string
	}{
		{"ready", status(on), 0, `"ready": true`},
		{"held", status(on, api.GPUStatus{Mode: api.ModeMIG, State: "held", Reason: "it failed"}), api.ExitDegraded, "the node is not ready: GPU 0 is held: it failed"},
		{"no right", routes{"GET /v1/status": &api.Error{Kind: api.KindDenied, Message: "you may not"}}, api.ExitDenied, "you may not"},
	} {
		r := run(t, c.at, "", "ready", "--json")
		if r.code != c.code || !strings.Contains(r.all, c.want) {
			t.Errorf("%s: exit %d: %s", c.name, r.code, r.all)
		}
		if c.code == 0 && !json.Valid([]byte(r.out)) {
			t.Errorf("%s: no JSON: %s", c.name, r.out)
		}
	}
}

// It waits no longer than its limit, and says what is not ready. A host may be so busy that not one answer comes in a second.
func TestReadyIsTooLate(t *testing.T) {
	for _, limit := range []string{"1s", "10s", "1m"} {
		requests := new(atomic.Int64)
		at := routes{"GET /v1/status": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			_ = json.NewEncoder(w).Encode(api.Status{SchemaVersion: 1, Node: api.NodeStatus{Starting: true}})
		})}
		r := run(t, at, "", "ready", "--json", "--timeout", limit)
		want := "the node is not ready after " + limit + ": the daemon has not compared the node with the spec yet"
		if r.code == api.ExitDegraded && strings.Contains(r.all, want) {
			return
		}
		if requests.Load() > 1 || limit == "1m" { // It sends another when it has the first answer.
			t.Fatalf("exit %d: %s", r.code, r.all)
		}
	}
}
