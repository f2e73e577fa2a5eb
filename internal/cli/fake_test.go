package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// routes are what a fake daemon answers: by "METHOD /path" a function, a refusal, or a value to encode.
type routes map[string]any

// fakeDaemon serves canned answers on a socket of its own, and gives its path.
func fakeDaemon(t testing.TB, r routes) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cli") // The path of a socket may have 107 bytes: the test's name may not be in it.
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch v := r[q.Method+" "+q.URL.Path].(type) {
		case nil:
			t.Errorf("the fake daemon was asked %s %s", q.Method, q.URL.Path)
			w.WriteHeader(http.StatusNotFound)
		case http.HandlerFunc:
			v(w, q)
		case *api.Error:
			w.WriteHeader(max(http.StatusBadRequest, v.Kind.Status()))
			_ = json.NewEncoder(w).Encode(map[string]any{"error": v})
		default:
			_ = json.NewEncoder(w).Encode(v)
		}
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // It ends with Close.
	}()
	t.Cleanup(func() {
		s.Close()
		<-ended
		os.RemoveAll(dir)
	})
	return path
}

// result is what a person sees, and where. all is both streams in the order in which they were written.
type result struct {
	code          int
	out, err, all string
}

// both writes to two buffers.
type both struct{ one, all *bytes.Buffer }

func (b both) Write(p []byte) (int, error) {
	b.all.Write(p)
	return b.one.Write(p)
}

func run(t testing.TB, r routes, stdin string, args ...string) result {
	t.Helper()
	return runOn(t.Context(), fakeDaemon(t, r), stdin, args...)
}

func runOn(ctx context.Context, socket, stdin string, args ...string) result {
	var out, errs, all bytes.Buffer
	code := cli.Run(ctx, args, []string{"GPUSHARE_SOCKET=" + socket, "TERM=xterm"},
		cli.Stdio{In: strings.NewReader(stdin), Out: both{&out, &all}, Err: both{&errs, &all}})
	return result{code, out.String(), errs.String(), all.String()}
}

func ptr[T any](v T) *T { return &v }

// The UUIDs of the canned node.
const (
	gpu0  = "GPU-5f01c3a2-87e1-5818-9920-4c076bf2aad8"
	gpu1  = "GPU-cd5d2d71-fb8a-52c7-bd97-35a92f0d70a9"
	gpu2  = "GPU-f02b5553-f85f-5547-a382-ce18461d92fa"
	gpu10 = "GPU-00ee9663-7f52-56b1-a7e0-5725cbc10e8a"
	mig4  = "MIG-707c4333-1166-5a12-9b9b-80cdc92478d4"
	mig0  = "MIG-0b2e072d-2d98-5231-ac3a-052ac7741b87"
)

// noon is the time of everything on the canned node.
var noon = time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)

// pausedNode is labNode with a lease that is frozen for two reasons.
func pausedNode() *api.Status {
	s := labNode()
	for i := range s.Leases {
		if l := &s.Leases[i]; l.ID == "vision-3kq6" {
			l.FrozenFor = []string{"an administrator", "the temperature of its GPU"}
		}
	}
	return s
}

// serviceNode is labNode with a lease that has latency: low and was frozen.
func serviceNode() *api.Status {
	s := labNode()
	for i := range s.Leases {
		if l := &s.Leases[i]; l.ID == "vision-k8qg" {
			l.Share.Latency = "low"
			l.Share.Freezes = &api.LeaseFreezes{Count: 12, Seconds: 1.4, LongestSeconds: 0.21, WaitP99Seconds: 0.084}
		}
	}
	return s
}

// frozenTenant is what freezing a tenant answers.
func frozenTenant() api.TenantFreezeResult {
	return api.TenantFreezeResult{
		SchemaVersion: 1,
		Tenant:        "vision",
		Changed:       true,
		Frozen:        &api.TenantFreeze{By: "root", Since: noon},
		Leases: []api.LeaseFreeze{
			{Lease: "vision-4", Frozen: true},
			{Lease: "vision-5", Reason: "it is a login, a service or a process in place, and is never frozen"},
		},
	}
}

// timesNode is labNode with times of its leases, and what is in the way of the one that waits.
func timesNode() *api.Status {
	s := labNode()
	for i := range s.Leases {
		switch l := &s.Leases[i]; l.ID {
		case "vision-3kq6":
			l.Started, l.Expires = ptr(noon.Add(-26*time.Hour)), ptr(noon.Add(2*time.Hour))
		case "vision-k8qg":
			l.Started, l.IdleSeconds = ptr(noon.Add(-95*time.Minute)), ptr(5400.0)
		case "vision-zzzz":
			l.MaxTime, l.StartUnknown = ptr(api.Duration(time.Hour)), "lease vision-k8qg of bob has no time limit"
			l.InUseBy = []api.PlaceUse{
				{
					Lease:  "vision-3kq6",
					Tenant: "vision",
					User:   "alice",
					Since:  ptr(noon.Add(-26 * time.Hour)),
					Until:  ptr(noon.Add(2 * time.Hour)),
				},
				{Until: ptr(noon.Add(30 * time.Hour))},
				{Lease: "vision-k8qg", Tenant: "vision", User: "bob", Since: ptr(noon.Add(-95 * time.Minute))},
			}
		}
	}
	return s
}

// labNode is a node with one example of each kind of state.
func labNode() *api.Status {
	const gib = 1 << 30
	const unknown = "correct the name, or create the user or group; until then the name gives no rights"
	return &api.Status{
		SchemaVersion: 1, At: noon,
		Node: api.NodeStatus{
			Host:       "lab1",
			Generation: 7,
			Enforce:    "on",
			Driver:     "580.95.05",
			Adapter:    "systemd 257",
			Operation:  "op-12",
			ClosedTo:   []string{"/system.slice/cron.service", "/user.slice"},
			Conditions: []api.Condition{
				{
					Kind:    "held",
					GPU:     gpu10,
					Message: "held: cannot create 3g.20gb at 4: in use",
					Hint:    "correct the cause, then 'gpushare gpu retry'",
				},
				{
					Kind:    "drift",
					GPU:     gpu0,
					Message: "GPU 0 is not as the spec says: an apply would create 1g.5gb at 2",
					Hint:    "it was changed outside gpushare; 'gpushare apply' corrects it",
				},
				{Kind: "not-enforced", Tenant: "vision", Message: "memory.high is not enforced"},
				{Kind: "unknown-member", Message: "this host does not know user alice of tenant vision", Hint: unknown},
				{Kind: "unknown-member", Message: "this host does not know user bob of tenant speech", Hint: unknown},
				{Kind: "state", Message: "cannot record the end of a change", Hint: "free space"},
			},
		},
		GPUs: []api.GPUStatus{
			{
				Index:  0,
				UUID:   gpu0,
				PCI:    "0000:07:00.0",
				Model:  "NVIDIA A100-SXM4-40GB",
				Mode:   "mig",
				State:  "ok",
				Memory: api.GPUMemory{Total: 40 * gib, Used: 1400 << 20},
				MIG: &api.MIGStatus{Enabled: true, Pending: true, Instances: []api.InstanceStatus{
					{
						ID:        3,
						Profile:   "2g.10gb",
						Placement: api.MIGPlacement{Start: 0, Size: 2},
						UUIDs:     []string{mig0, "MIG-1f0e6d52-1111-5231-ac3a-052ac7741b87"},
						Memory:    api.GPUMemory{Total: 9856 << 20},
					},
					{
						ID:        7,
						Profile:   "1g.5gb",
						Placement: api.MIGPlacement{Start: 2, Size: 1},
						UUIDs:     []string{"MIG-7c4f28eb-a675-5538-9728-883cfe6bbdf7"},
						Foreign:   true,
						Memory:    api.GPUMemory{Total: 4864 << 20},
					},
					{ID: 8, Profile: "1g.5gb+me", Placement: api.MIGPlacement{Start: 3, Size: 1}, Memory: api.GPUMemory{Total: 4864 << 20}},
					{
						ID:        2,
						Profile:   "3g.20gb",
						Placement: api.MIGPlacement{Start: 4, Size: 4},
						UUIDs:     []string{mig4},
						Lease:     "vision-3kq6",
						Memory:    api.GPUMemory{Total: 19968 << 20, Used: 1400 << 20},
					},
				}},
			},
			{
				Index:       1,
				UUID:        gpu1,
				PCI:         "0000:0f:00.0",
				Model:       "NVIDIA A100-SXM4-40GB",
				Mode:        "mps",
				State:       "ok",
				Memory:      api.GPUMemory{Total: 40 * gib, Used: 3 * gib},
				Utilization: ptr(100),
				MPS: &api.MPSStatus{
					State:      "running",
					Unit:       "gpushare-mps-cd5d2d71fb8a.service",
					PID:        28415,
					Version:    "13.0",
					Clients:    1,
					MaxClients: 48,
					Bypass:     "report",
				},
				Processes: []api.ProcessStatus{
					{
						PID:  1,
						Kind: "mps-server",
					},
					{PID: 2, Kind: "mps", Lease: "speech-serve-with-a-very-long-name-0042"},
					{PID: 3, Kind: "compute"},
					{PID: 4, Kind: "compute"},
				},
			},
			{
				Index:       2,
				UUID:        gpu2,
				PCI:         "0000:47:00.0",
				Model:       "NVIDIA RTX PRO 6000 Blackwell Server Edition",
				Mode:        "timeslice",
				State:       "ok",
				Memory:      api.GPUMemory{Total: 96 * gib, Used: 50 * gib},
				Utilization: ptr(7),
				TimeSlices:  &api.TimeSlices{Enforced: true, Contended: true, IdleWhileWaiting: ptr(1.2)},
			},
			{
				Index:     10,
				UUID:      gpu10,
				PCI:       "0000:4e:00.0",
				Model:     "NVIDIA A100-SXM4-40GB",
				Mode:      "mps",
				State:     "held",
				Reason:    "cannot create 3g.20gb at 4: in use",
				Memory:    api.GPUMemory{Total: 40 * gib},
				MPS:       &api.MPSStatus{State: "failed", Bypass: "deny", Reason: "its unit ended three times"},
				Processes: []api.ProcessStatus{{PID: 5, Kind: "compute"}},
			},
		},
		Tenants: []api.TenantStatus{
			{Name: "vision", Priority: "high", Limits: []api.LimitStatus{
				{
					Name:    "cpu.quota",
					Desired: "800%",
					InForce: "800%",
				},
				{Name: "memory.high", Desired: "60GiB", Reason: "this kernel has no memory controller"},
			}, Grants: []api.GrantStatus{
				{Name: "train", Kind: "mig", Text: "MIG 3g.20gb", GPUs: []string{gpu0}, Leases: 1, MaxLeases: 1, Queued: 2},
				{
					Name:   "dev",
					Kind:   "timeslice",
					Text:   "40% of the time, 30 GiB",
					GPUs:   []string{gpu2},
					Leases: 1,
					Container: &api.ContainerUse{
						Device: "gpushare.dev/gpu=vision.dev", CgroupParent: "gpushare-vision-dev.slice",
						Command: "podman run --cgroup-parent=gpushare-vision-dev.slice --device=gpushare.dev/gpu=vision.dev IMAGE",
					},
				},
			}},
			{
				Name:     "speech",
				Priority: "normal",
				Grants: []api.GrantStatus{
					{
						Name:      "serve",
						Kind:      "mps",
						Text:      "30% of the threads (advisory), 16 GiB",
						GPUs:      []string{gpu1, gpu10},
						Leases:    1,
						MaxLeases: 4,
					},
				},
			},
			{Name: "geology", Priority: "low"},
		},
		Leases: []api.Lease{
			{
				ID:         "vision-3kq6",
				Generation: 31,
				Tenant:     "vision",
				Grant:      "train",
				Kind:       "mig",
				State:      "running",
				User:       "alice",
				PID:        31853,
				Command:    []string{"python", "train.py"},
				Devices: []string{
					mig4,
				},
				GPUMemory: &api.LeaseMemory{Limit: 19968 << 20, Used: 1400 << 20, Backend: "mig"},
				Started:   &noon,
				Expires:   ptr(noon.Add(24 * time.Hour)),
				Isolation: api.IsolationStatus{
					Cgroup:      "/gpushare.slice/gpushare-vision.slice/gpushare-vision-train.slice/gpushare-vision-3kq6.scope",
					Unit:        "gpushare-vision-3kq6.scope",
					Devices:     true,
					NotEnforced: []string{"memory.high: this kernel has no memory controller"},
				},
				Notices: []string{"GPU memory is nearly used up"},
			},
			{
				ID:      "vision-k8qg",
				Tenant:  "vision",
				Grant:   "dev",
				Kind:    "timeslice",
				State:   "running",
				User:    "bob",
				PID:     7,
				Command: []string{"sh", "-c", "echo \x1b[31mred; printf '%s\n' größer und größer und größer und größer"},
				Devices: []string{
					gpu2,
				},
				GPUMemory: &api.LeaseMemory{Limit: 30 * gib, Used: 31 * gib, Backend: "reactive", Stage: "over"},
				Share: &api.LeaseShare{
					Entitled:  40,
					Due:       ptr(57.1),
					Busy:      ptr(38.6),
					StdErr:    ptr(4.9),
					OfUsed:    ptr(55.2),
					Occupancy: ptr(56.8),
					Enforced:  true,
				},
			},
			{
				ID:        "speech-serve-with-a-very-long-name-0042",
				Tenant:    "speech",
				Grant:     "serve",
				Kind:      "mps",
				State:     "running",
				PID:       2,
				Command:   []string{"serve"},
				Devices:   []string{gpu1},
				GPUMemory: &api.LeaseMemory{Used: 3 * gib, Backend: "none"},
				Share:     &api.LeaseShare{Entitled: 30, Advisory: true},
			},
			{
				ID:       "vision-zzzz",
				Tenant:   "vision",
				Grant:    "train",
				Kind:     "mig",
				State:    "queued",
				User:     "carol",
				Command:  []string{"make", "train"},
				Position: 1,
				Waiting:  "its one lease is in use",
			},
		},
		Users: []api.UserStatus{
			{User: "alice", UID: 1001, Leases: 1, MaxLeases: 4, GPUMemory: api.UserMemory{Granted: 19968 << 20, Limit: 40 * gib}},
			{User: "bob", UID: 1002, Leases: 4, MaxLeases: 4, GPUMemory: api.UserMemory{Granted: 30 * gib, Limit: 40 * gib}},
		},
	}
}

// endedLeases is what lease list --all reads when no lease runs.
func endedLeases() api.LeaseList {
	over := noon.Add(time.Hour)
	return api.LeaseList{SchemaVersion: 1, Leases: []api.Lease{
		{
			ID:      "vision-77aa",
			Tenant:  "vision",
			Grant:   "train",
			Kind:    "mig",
			State:   "ended",
			Origin:  "detached",
			User:    "alice",
			PID:     41,
			Command: []string{"python", "train.py"},
			Devices: []string{
				mig4,
			},
			Started:  &noon,
			Ended:    &over,
			Result:   "exited with 3",
			ExitCode: ptr(3),
			Reason:   "its last process ended",
		},
		{
			ID:      "vision-88bb",
			Tenant:  "vision",
			Grant:   "train",
			Kind:    "mig",
			State:   "ended",
			Origin:  "run",
			User:    "alice",
			PID:     42,
			Command: []string{"make"},
			Started: &noon,
			Ended:   &over,
			Reason:  "the kernel killed it: out of memory",
		},
	}}
}

// acknowledgedNode is labNode on which an administrator knows of every condition.
func acknowledgedNode() *api.Status {
	s := labNode()
	for i := range s.Node.Conditions {
		c := &s.Node.Conditions[i]
		c.ID, c.Since, c.Acknowledged = fmt.Sprintf("%s-%08x", c.Kind, i), noon, &api.Acknowledgement{By: "root", At: noon}
	}
	s.Node.Conditions[0].Acknowledged.Until, s.Node.Conditions[0].Acknowledged.Reason = ptr(
		noon.Add(2*time.Hour),
	), "the board is replaced today"
	return s
}

func acknowledgedResult(now bool) api.AcknowledgeResult {
	out := api.AcknowledgeResult{
		SchemaVersion: 1,
		Changed:       true,
		Condition:     api.Condition{ID: "held-3f9a21c0", Kind: "held", GPU: gpu10, Message: "held: in use", Since: noon},
	}
	if now {
		out.Condition.Acknowledged = &api.Acknowledgement{By: "root", At: noon, Until: ptr(noon.Add(2 * time.Hour)), Reason: "today"}
	}
	return out
}

func acknowledgedDoctor() *api.Doctor {
	d := labDoctor()
	c := &d.Checks[3]
	c.Result, c.Hint, c.Acknowledged = "ok", "", acknowledgedResult(true).Condition.Acknowledged
	return d
}

func printing(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// emptyNode is a node without a GPU, a spec or a tenant.
func emptyNode() *api.Status {
	return &api.Status{SchemaVersion: 1, At: noon, Node: api.NodeStatus{Host: "lab2", Enforce: "observe", Adapter: "processes"}}
}

func labPlan() api.Plan {
	return api.Plan{
		SchemaVersion: 1, Generation: 8,
		Steps: []api.PlanStep{
			{
				ID:               1,
				Kind:             "mig.destroy",
				GPU:              gpu0,
				Text:             "destroy 2g.10gb at 0",
				Reason:           "not in the layout",
				Disruption:       "none",
				EstimatedSeconds: 0.31,
			},
			{ID: 2, Kind: "mig.create", GPU: gpu0, Text: "create 1g.5gb at 0", Reason: "missing instance", Disruption: "none"},
			{
				ID:               3,
				Kind:             "mps.start",
				GPU:              gpu10,
				Text:             "start MPS",
				Reason:           "MPS is desired but does not run",
				Disruption:       "none",
				EstimatedSeconds: 2,
			},
			{
				ID:         4,
				Kind:       "slice.set",
				Text:       "create the cgroup slice of vision/train: cpu.quota 800%, memory.max 64GiB, memory.high 60GiB, tasks.max 4096",
				Reason:     "it does not exist",
				Disruption: "none",
			},
			{ID: 5, Kind: "lease.stop", GPU: gpu2, Text: "stop lease vision-k8qg", Disruption: "kills"},
		},
		Warnings: []string{"this host does not know user alice of tenant vision"},
		Disturbs: []string{"vision-k8qg (bob: sh)", "speech-0042 (serve)"},
	}
}

// operation gives the versions of an operation on labPlan: begun, half way, and ended in a state.
func operation(state string, failure *api.Error) []*api.Operation {
	var out []*api.Operation
	for version := range 3 {
		o := &api.Operation{
			ID:      "op-13",
			Kind:    "apply",
			State:   "running",
			Version: uint64(version + 1),
			By:      "root",
			Plan:    labPlan(),
			Started: noon,
		}
		for i := range o.Plan.Steps {
			s := &o.Plan.Steps[i]
			switch {
			case version == 0 || (version == 1 && i > 2):
				s.State = "pending"
			case version == 1 && i == 2:
				s.State = "doing"
			case version == 2 && i == 2 && failure != nil:
				s.State, s.Error = "failed", "its unit ended at once"
			case version == 2 && i == 1 && failure != nil:
				s.State = "undone"
			default:
				s.State, s.Seconds = "done", 0.04+float64(i)
			}
		}
		if version == 2 {
			o.State, o.Finished, o.Error = state, &noon, failure
		}
		out = append(out, o)
	}
	return out
}

// labOperations is one operation that runs after one that was held and one without steps.
func labOperations() api.OperationList {
	held := operation("degraded", &api.Error{Kind: api.KindDegraded, Message: "GPU 10 is held: MPS does not start", Hint: "correct the cause, then 'gpushare gpu retry 10'"})[2]
	held.ID, held.Started, held.Finished = "apply-11", noon.Add(-time.Hour), ptr(noon.Add(-time.Hour+2500*time.Millisecond))
	runs := operation("done", nil)[1]
	runs.Started = noon.Add(-3 * time.Second)
	retried := api.OperationSummary{
		ID:         "retry-of-2",
		Kind:       "retry",
		State:      "done",
		By:         "alice\x1b[2J",
		Generation: 8,
		Started:    noon.Add(-time.Minute),
		Finished:   ptr(noon.Add(-time.Minute)),
	}
	return api.OperationList{SchemaVersion: 1, Operations: []api.OperationSummary{held.Summary(), retried, runs.Summary()}}
}

// applying answers an apply with an operation that goes through its versions.
func applying(versions []*api.Operation) routes {
	return routes{
		"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			_ = json.NewEncoder(w).Encode(api.ApplyResult{Generation: 8, Changed: true, Plan: labPlan(), Operation: versions[0]})
		}),
		"GET /v1/operations/op-13": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			next := versions[1]
			if !q.URL.Query().Has("wait") {
				next = versions[0]
			} else if q.URL.Query().Get("after") == "2" {
				next = versions[2]
			}
			_ = json.NewEncoder(w).Encode(next)
		}),
		"GET /v1/status": labNode(),
	}
}

// reloading answers a reload that applies a spec_file in the same way.
func reloading(versions []*api.Operation) routes {
	r := applying(versions)
	r["POST /v1/reload"] = api.Reloaded{
		Reloaded:     true,
		NeedsRestart: []string{"socket"},
		Applied:      &api.ApplyResult{Generation: 8, Changed: true, Plan: labPlan(), Operation: versions[0]},
	}
	return r
}

// releasing answers a release in the same way.
func releasing(versions []*api.Operation) routes {
	r := applying(versions)
	for _, o := range versions {
		o.Kind = "unmanage"
	}
	r["POST /v1/unmanage"] = r["PUT /v1/spec"]
	delete(r, "PUT /v1/spec")
	return r
}

func labDoctor() *api.Doctor {
	return &api.Doctor{SchemaVersion: 1, Checks: []api.Check{
		{Name: "driver", Result: "ok", Message: "version 580.95.05, 4 GPUs"},
		{
			Name:    "unknown-member",
			Result:  "warn",
			Message: "this host does not know user alice",
			Hint:    "correct the name, or create the user or group",
		},
		{
			Name:    "unknown-member",
			Result:  "warn",
			Message: "this host does not know user bob",
			Hint:    "correct the name, or create the user or group",
		},
		{
			Name:    "held",
			Result:  "fail",
			Message: "GPU 10: cannot create 3g.20gb at 4: in use",
			Hint:    "correct the cause, then 'gpushare gpu retry'",
		},
	}}
}

// emitting answers with lines and then closes.
func emitting(values ...any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, v := range values {
			_ = json.NewEncoder(w).Encode(v)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func labEvents() []any {
	return []any{
		api.Event{
			Seq:     1,
			At:      noon,
			Kind:    "lease.started",
			GPU:     gpu0,
			Tenant:  "vision",
			Lease:   "vision-3kq6",
			Message: "alice started python\x1b[2J train.py",
		},
		api.Event{Seq: 2, At: noon.Add(time.Second), Kind: "gpu.held", GPU: gpu10, Message: "cannot create 3g.20gb at 4: in use"},
		api.Event{Seq: 5, At: noon.Add(2 * time.Second), Kind: "gap", Message: "2 events were missed"},
		api.Event{Seq: 6, At: noon.Add(3 * time.Second), Kind: "tenant.over", Tenant: "vision", Message: "over its limit"},
	}
}

func labAudit() []any {
	return []any{
		api.AuditLine{
			Number:     7,
			At:         noon,
			By:         "root",
			PID:        4711,
			Role:       "admin",
			What:       "apply",
			Generation: 8,
			Message:    "3 steps, force=false",
		},
		api.AuditLine{
			Number:     8,
			At:         noon.Add(time.Second),
			By:         "alice",
			UID:        1001,
			PID:        4712,
			Role:       "member",
			What:       "start",
			Generation: 8,
			Tenant:     "vision",
			Lease:      "vision-3kq6",
			Message:    "alice started python",
			Command:    "python\x1b[2J train.py",
			Lost:       2,
		},
		api.AuditLine{
			Number:     9,
			At:         noon.Add(2 * time.Second),
			By:         "bob",
			UID:        1002,
			PID:        4713,
			Role:       "member",
			What:       "stop",
			Kind:       api.KindNotFound,
			Generation: 8,
			Lease:      "vision-3kq6",
			Message:    "there is no lease \"vision-3kq6\" that you may stop",
		},
		api.AuditLine{
			Number:     10,
			At:         noon.Add(time.Minute),
			By:         "bob",
			UID:        1002,
			Role:       "member",
			What:       "errors",
			Kind:       api.KindInvalid,
			Count:      37,
			Generation: 8,
			Message:    "since 12:00:00: invalid 37; the last: read the status: unknown key",
		},
		api.AuditLine{
			Number:     11,
			At:         noon.Add(time.Minute),
			By:         "gpushared",
			UID:        -1,
			What:       "preempt",
			Generation: 8,
			Message:    "lease vision-3kq6 is stopped",
		},
	}
}

// auditMissing is a verification that finds three places.
func auditMissing() api.AuditVerification {
	return api.AuditVerification{
		SchemaVersion: 1,
		Entries:       30,
		First:         7,
		Last:          46,
		SHA256:        strings.Repeat("5f", 32),
		Anchored:      true,
		MoreFindings:  1,
		Broken: &api.BrokenLine{
			File:    "audit-000002.log",
			Line:    4,
			Message: "it has number 12 and follows number 9: the lines between them were removed",
		},
		Findings: []api.AuditFinding{
			{
				File:    "audit-000002.log",
				Line:    4,
				First:   10,
				Last:    11,
				After:   noon,
				Before:  noon.Add(time.Hour),
				Message: "it has number 12 and follows number 9: the lines between them were removed",
			},
			{
				File:      "audit-000003.log",
				First:     47,
				Last:      47,
				After:     noon.Add(2 * time.Hour),
				Before:    noon.Add(3 * time.Hour),
				PowerLoss: true,
				Message:   "the last line is number 46, and number 47 was written: the lines after it may have been lost with the power of the host, before they were on the disk",
			},
			{Message: "line 30 cannot be compared: the oldest that is there is number 31"},
		},
	}
}

// labMPS is the MPS of GPU 1 of labNode.
func labMPS() api.MPSDetail {
	g := labNode().GPUs[1]
	m := api.MPSDetail{
		SchemaVersion: 1,
		GPU:           g.UUID,
		Index:         g.Index,
		MPSStatus:     *g.MPS,
		Servers:       []int{28420},
		ClientList: []api.ProcessStatus{
			{PID: 2, Command: "serve", Kind: "mps", Lease: "speech-1", Tenant: "speech", Memory: ptr(uint64(3 << 30))},
			{PID: 3, Kind: "mps"},
		},
		Rules: []api.Rule{
			{What: "default threads", Desired: "30%", Enforced: true, By: "the control daemon, for clients that join from now on"},
			{What: "default GPU memory", Desired: "no limit", Reason: "the control daemon has no limit"},
			{
				What:     "speech-1: GPU time",
				Desired:  "threads, 30%",
				Advisory: true,
				Reason:   "advisory: each process asks the MPS server for it, by its environment",
			},
		},
	}
	m.Started, m.Restarts = &noon, 1
	return m
}

// mpsRestart is the plan of a restart of MPS.
func mpsRestart() api.Plan {
	return api.Plan{SchemaVersion: 1, Generation: 7, Disturbs: []string{"pid 2 (lease speech-1)"}, Steps: []api.PlanStep{
		{
			ID:         1,
			Kind:       "mps.restart",
			GPU:        gpu1,
			Text:       "restart MPS",
			Reason:     "an administrator requests it",
			Disruption: "running",
			Disturbs:   []string{"pid 2 (lease speech-1)"},
		},
	}}
}
