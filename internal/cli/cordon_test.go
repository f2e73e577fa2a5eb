package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// cordonedNode is labNode with a cordoned GPU.
func cordonedNode() *api.Status {
	s := labNode()
	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.UUID == gpu1 {
			g.State, g.Reason = "cordoned", "root closed it to new leases (its fan); 'gpushare gpu uncordon 1' ends that"
			g.Cordoned = &api.Cordon{By: "root", Since: noon, Reason: "its fan"}
		}
	}
	return s
}

// closedNode is cordonedNode with more reasons why the GPU takes no lease, one of which is a condition.
func closedNode() *api.Status {
	s := cordonedNode()
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID != gpu1 {
			continue
		}
		cordoned := g.Reason
		g.State, g.Reason = "held", "cannot start MPS: it ended; "+cordoned
		g.Closures = []api.Closure{
			{Kind: "held", Reason: "cannot start MPS: it ended", Since: &noon},
			{Kind: "cordoned", Reason: cordoned, By: "root", Since: &noon},
			{
				Kind:     "drained",
				Reason:   "root drained its MPS; 'gpushare mps resume 1:4' ends that",
				Instance: &api.MIGPlacement{Start: 4, Size: 4},
			},
			{Kind: "held-back", Reason: "its MPS takes no lease of vision after 3 fatal faults", Tenant: "vision"},
		}
	}
	s.Node.Conditions = []api.Condition{
		{Kind: "held", GPU: gpu1, Message: "held: cannot start MPS: it ended", Hint: "'gpushare gpu retry 1'"},
	}
	return s
}

// drainingNode is a daemon whose GPU has two leases. Each that is requested to stop ends, and with ends the others do too after
// they were seen once.
type drainingNode struct {
	ends bool

	mu      sync.Mutex // guards what follows
	stopped map[string]bool
	reads   int
}

func (d *drainingNode) routes() routes {
	r := routes{
		"POST /v1/gpus/1/cordon": api.CordonResult{
			SchemaVersion: 1,
			GPU:           gpu1,
			Index:         1,
			Changed:       true,
			Cordoned:      &api.Cordon{By: "root", Since: noon},
			Leases:        []string{"a-1", "b-2"},
		},
		"GET /v1/status": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.reads++
			s := api.Status{SchemaVersion: 1}
			for _, id := range []string{"a-1", "b-2"} {
				if !d.stopped[id] && !(d.ends && d.reads > 1) {
					s.Leases = append(s.Leases, api.Lease{ID: id, User: "ann", State: "running", GPUs: []string{gpu1}})
				}
			}
			s.Leases = append(
				s.Leases, api.Lease{ID: "other-3", State: "running", GPUs: []string{gpu0}}, api.Lease{ID: "queued-4", State: "queued"},
			)
			_ = json.NewEncoder(w).Encode(s)
		}),
	}
	for _, id := range []string{"a-1", "b-2"} {
		r["DELETE /v1/leases/"+id] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.stopped[id] = true
			_, _ = w.Write([]byte("{}"))
		})
	}
	return r
}

// A drain waits for the leases of its GPU and for no other, or stops them, and names those that are left at its deadline.
func TestDrain(t *testing.T) {
	for _, c := range []struct {
		golden, args string
		ends         bool
		code         int
	}{
		{"gpu-drain", "gpu drain 1", true, 0},
		{"gpu-drain-stop", "gpu drain 1 --stop --reason driver", false, 0},
		{"gpu-drain-late", "gpu drain 1 --timeout 1s", false, 6},
		{"gpu-drain-json", "gpu drain 1 --timeout 1s --json", false, 6},
		{"gpu-drain-no-time", "gpu drain 1 --timeout soon", false, 2},
	} {
		t.Run(c.golden, func(t *testing.T) {
			t.Parallel()
			d := &drainingNode{ends: c.ends, stopped: map[string]bool{}}
			r := run(t, d.routes(), "", strings.Fields(c.args)...)
			if r.code != c.code {
				t.Errorf("exit code %d, want %d", r.code, c.code)
			}
			// Both leases end between two looks, in any order.
			out := strings.Replace(r.out, "  ended     b-2\n  ended     a-1\n", "  ended     a-1\n  ended     b-2\n", 1)
			compare(t, c.golden, fmt.Sprintf("$ gpushare %s\n%s── standard error\n%s── exit code %d\n", c.args, out, r.err, r.code))
		})
	}
}
