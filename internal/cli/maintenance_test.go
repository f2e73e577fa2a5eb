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

// maintainedNode is a daemon in maintenance. A lease ends after it was seen once, if it ends, and the driver is parked with it.
type maintainedNode struct {
	ends, driver, parks bool
	users               []api.DriverUser

	mu    sync.Mutex // guards reads
	reads int
}

func (d *maintainedNode) result() api.MaintenanceResult {
	m := &api.Maintenance{By: "root", Since: noon, Reason: "driver 580.105", Driver: d.driver, DriverVersion: "580.95.05"}
	out := api.MaintenanceResult{SchemaVersion: 1, Changed: true, Maintenance: m, Leases: []string{}}
	switch {
	case !d.ends || d.reads < 2:
		out.Leases = []string{"vision-train-1"}
		if d.driver {
			out.Waiting = "1 lease left"
		}
	case d.driver && d.parks:
		m.Parked = true
	case d.driver:
		out.Waiting = "the MPS of GPU 3 has clients in no lease: pid 812 (python)"
	}
	if d.driver {
		out.DriverUsers = d.users
	}
	return out
}

func (d *maintainedNode) routes() routes {
	answer := func(v func() any) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			d.mu.Lock()
			defer d.mu.Unlock()
			_ = json.NewEncoder(w).Encode(v())
		})
	}
	return routes{
		"POST /v1/maintenance": answer(func() any { return d.result() }),
		"GET /v1/maintenance":  answer(func() any { return d.result() }),
		"GET /v1/status": answer(func() any {
			d.reads++
			s := api.Status{SchemaVersion: 1, Leases: []api.Lease{{ID: "queued-4", State: "queued", GPUs: []string{gpu1}}}}
			if !d.ends || d.reads < 2 {
				s.Leases = append(s.Leases, api.Lease{ID: "vision-train-1", User: "ann", State: "running", GPUs: []string{gpu1}})
			}
			return s
		}),
		"DELETE /v1/leases/vision-train-1": answer(func() any { d.ends = true; return struct{}{} }),
	}
}

// A maintenance names what is in its way, and waits for the leases if that is asked for.
func TestMaintenance(t *testing.T) {
	users := []api.DriverUser{
		{
			PID:     501,
			Command: "nvidia-persiste",
			User:    "nvidia-persistenced",
			Unit:    "nvidia-persistenced.service",
			Nodes:   []string{"nvidia0", "nvidia1", "nvidiactl"},
		},
		{PID: 4711, Command: "python", User: "ann", Unit: "session-3.scope", Nodes: []string{"nvidia0"}},
	}
	for _, c := range []struct {
		golden, args string
		node         *maintainedNode
		code         int
	}{
		{"maintenance-on", "maintenance on", &maintainedNode{}, 0},
		{"maintenance-on-wait", "maintenance on --wait 1m", &maintainedNode{ends: true}, 0},
		{"maintenance-on-late", "maintenance on --wait 1s", &maintainedNode{}, 6},
		{"maintenance-on-stop", "maintenance on --stop --wait 1m", &maintainedNode{}, 0},
		{"maintenance-on-no-time", "maintenance on --wait=soon", &maintainedNode{}, 2},
		{"maintenance-on-driver", "maintenance on --driver --reason x", &maintainedNode{driver: true, users: users}, 6},
		{"maintenance-on-driver-wait", "maintenance on --driver --wait 0s", &maintainedNode{driver: true, ends: true, parks: true}, 0},
		{"maintenance-on-driver-json", "maintenance on --driver --wait 0s --json", &maintainedNode{driver: true, ends: true, parks: true, users: users}, 0},
		{"maintenance-neither", "maintenance begin", &maintainedNode{}, 2},
		{"maintenance-off-driver", "maintenance off --driver", &maintainedNode{}, 2},
		{"maintenance-show", "maintenance", &maintainedNode{driver: true, ends: true, parks: true, users: users, reads: 2}, 0},
		{"maintenance-show-waiting", "maintenance", &maintainedNode{driver: true, ends: true, reads: 2}, 0},
	} {
		t.Run(c.golden, func(t *testing.T) {
			t.Parallel()
			r := run(t, c.node.routes(), "", strings.Fields(c.args)...)
			if r.code != c.code {
				t.Errorf("exit code %d, want %d", r.code, c.code)
			}
			compare(t, c.golden, fmt.Sprintf("$ gpushare %s\n%s── standard error\n%s── exit code %d\n", c.args, r.out, r.err, r.code))
		})
	}
}
