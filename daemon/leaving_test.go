package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/scenarios"
)

// leftAt is the context of a request whose caller leaves at one of the points that the request passes: where its context is read, before
// and after each call of the driver and of the cgroups, and where a time is recorded.
type leftAt struct {
	context.Context
	leave  context.CancelFunc
	at     int64
	passed atomic.Int64
}

func (l *leftAt) pass() {
	if l.passed.Add(1) == l.at {
		l.leave()
	}
}

func (l *leftAt) Err() error {
	l.pass()
	return l.Context.Err()
}

func (l *leftAt) Value(key any) any {
	l.pass()
	return l.Context.Value(key)
}

// leaving is a request of a route, on a node that is prepared for it.
type leaving struct {
	name, method, target, body string
	spec                       string // of the node; empty: maintained
	prepare                    func(*virtual, *leaving)
	operation                  bool    // the daemon carries it out after the answer
	file                       bool    // its spec is a file of the settings
	repeats                    bool    // the same request does it again
	frozen                     bool    // the tenant has a lease that can be frozen
	process                    bool    // it is about a process that is waited for, which virtual time does not do
	victim                     *victim // the process, of either
}

func (r *leaving) route() string { return r.method + " " + r.name }

// stage is the node before the request.
func (r *leaving) stage(t *testing.T) *virtual {
	t.Helper()
	w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "a100-40"})
	if r.file {
		w.specFile = filepath.Join(filepath.Dir(w.dir), "node.yaml")
		must(t, os.WriteFile(w.specFile, []byte(maintained), 0o600))
	}
	w.startDaemon()
	w.waitIdle(nil)
	w.enforcer.Freezer = &freezerInMemory{w: w, frozen: map[string]cgroup.FreezeReason{}}
	fake := &mpsInMemory{w: w, running: map[mps.Device]*mps.State{}}
	w.observer.MPS = fake
	for _, kind := range []string{mps.KindStart, mps.KindStop, mps.KindRestart} {
		w.changes.Engine.Handlers[kind] = fake
	}
	spec := r.spec
	if spec == "" {
		spec = maintained
	}
	w.mustApply(spec)
	if r.frozen {
		w.withLease(r.victim)
	}
	if r.prepare != nil {
		r.prepare(w, r)
		w.passes()
	}
	return w
}

// passes makes passes of the loop that corrects the node, and waits for what they begin.
func (w *virtual) passes() {
	for range 3 {
		for w.state.Changing() != nil {
			time.Sleep(time.Millisecond)
		}
		w.converger.Pass(w.tasks.Context())
	}
}

// named is a text of the request with what is there.
func (r *leaving) named(w *virtual, text string) string {
	if r.victim != nil {
		text = strings.ReplaceAll(text, "PID", strconv.Itoa(r.victim.pid))
	}
	for _, l := range w.table.Live() {
		text = strings.ReplaceAll(text, "LEASE", l.ID)
	}
	for _, c := range w.Conditions.List() {
		if c.Kind == "test" {
			text = strings.ReplaceAll(text, "CONDITION", c.ID)
		}
	}
	return text
}

// send makes the request, of a caller who leaves at a point; 0: they stay.
func (r *leaving) send(t *testing.T, w *virtual, at int64) (passed int64, done bool, answer string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := &server.Peer{}
	if r.victim != nil {
		p.Process = cgroup.Process{PID: r.victim.pid, Start: r.victim.start}
	}
	l := &leftAt{Context: context.WithValue(ctx, server.PeerKey{}, p), leave: cancel, at: at}
	q := httptest.NewRequestWithContext(l, r.method, r.named(w, r.target), strings.NewReader(r.named(w, r.body)))
	q.Host = "gpushare"
	rec := httptest.NewRecorder()
	w.passed.Store(l)
	w.server.Handler().ServeHTTP(rec, q)
	passed = l.passed.Load()
	w.passes()
	w.passed.Store(nil)
	answer = rec.Body.String()
	done = rec.Code < 300 && !strings.Contains(answer, `"error":{`) // In a stream the last line has the error.
	if lines := auditOf(w, ""); len(lines) == 0 || done != (lines[len(lines)-1].Kind == "") {
		t.Errorf("left at point %d the answer is %s, and the audit has %+v", at, answer, lines)
	}
	return passed, done, answer
}

var volatile = regexp.MustCompile(
	`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?|"last_operation": \d+,?|-[a-z0-9]{4}\b("|\.json)|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|"mean_seconds": [0-9.e-]+|gpushare-test-\d+|"driver": "\w+"`,
)

// shot is all that a request may change, without times and numbers of operations.
func (w *virtual) shot() string {
	w.Helper()
	s := w.statusNow()
	out := struct {
		Stored     any
		Layouts    []string
		Modes      []string
		Slices     any
		Leases     []string
		Conditions []api.Condition
		GPUs       []api.GPUStatus
		Tenants    []api.TenantStatus
		Parked     bool
		Frozen     any
		MPS        any
		Changing   bool
		Files      []string
	}{
		Stored: w.state.Stored(), Slices: w.port.list(), Conditions: s.Node.Conditions, GPUs: s.GPUs, Tenants: s.Tenants,
		Parked: w.driver.Status().Parked, Frozen: w.enforcer.Freezer.(*freezerInMemory).frozen,
		MPS: w.observer.MPS.(*mpsInMemory).list(), Changing: w.state.Changing() != nil,
	}
	for i, g := range w.truth() {
		out.Layouts = append(out.Layouts, w.layoutOf(i))
		out.Modes = append(out.Modes, fmt.Sprint(g.ComputeMode))
	}
	for _, l := range w.table.List() {
		out.Leases = append(out.Leases, fmt.Sprint(l.Tenant, " ", l.Grant, " ", l.State))
	}
	slices.Sort(out.Leases)
	files, err := os.ReadDir(w.settings.CDIDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	for _, f := range files {
		out.Files = append(out.Files, f.Name())
	}
	b, err := json.MarshalIndent(out, "", " ")
	if err != nil {
		w.Fatal(err)
	}
	return volatile.ReplaceAllString(string(b), "")
}

// differs are the lines in which two shots differ.
func differs(a, b string) string {
	in := func(all []string, l string) bool { return slices.Contains(all, l) }
	x, y, out := strings.Split(a, "\n"), strings.Split(b, "\n"), []string{}
	for _, l := range x {
		if !in(y, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range y {
		if !in(x, l) {
			out = append(out, "+ "+l)
		}
	}
	if len(out) == 0 && a != b {
		out = append(out, "(the order of lines)")
	}
	return strings.Join(out[:min(len(out), 30)], "\n")
}

// freezerInMemory freezes leases.
type freezerInMemory struct {
	w      *virtual
	mu     sync.Mutex // guards frozen
	frozen map[string]cgroup.FreezeReason
}

func (f *freezerInMemory) Freeze(ctx context.Context, id string, reason cgroup.FreezeReason, _ time.Duration) error {
	f.w.pass()
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen[id] = reason
	return nil
}

func (f *freezerInMemory) Thaw(ctx context.Context, id string, _ cgroup.FreezeReason) error {
	f.w.pass()
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.frozen, id)
	return nil
}

func (f *freezerInMemory) Reasons(id string) []cgroup.FreezeReason {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r, ok := f.frozen[id]; ok {
		return []cgroup.FreezeReason{r}
	}
	return nil
}

func (f *freezerInMemory) Retain(context.Context, map[string]bool) error { return nil }
func (f *freezerInMemory) Ready() error                                  { return nil }

// mpsInMemory runs MPS control daemons that have no process.
type mpsInMemory struct {
	w       *virtual
	mu      sync.Mutex // guards running
	running map[mps.Device]*mps.State
}

func (m *mpsInMemory) list() (out []mps.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.running {
		out = append(out, *s)
	}
	return out
}

func (m *mpsInMemory) Observe(ctx context.Context, d mps.Device) *mps.State {
	m.w.pass()
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.running[d]
	if !ok {
		return nil
	}
	now := *s
	if ctx.Err() != nil { // It did not answer, and its clients are not known.
		now.Clients = nil
	}
	return &now
}

func (m *mpsInMemory) ObserveInstances(context.Context, gpu.UUID, []gpu.Placement) []*mps.State {
	return nil
}
func (m *mpsInMemory) Program(context.Context) mps.Program { return mps.Program{} }

func (m *mpsInMemory) Applied(_ context.Context, s step.Step) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.running[mps.Whole(gpu.UUID(s.GPU))]
	switch s.Kind {
	case mps.KindStart:
		return now != nil, nil
	case mps.KindStop:
		return now == nil, nil
	}
	a, err := mps.Decode[mps.RestartArgs](s.Args)
	return now != nil && now.PID != a.PID, err
}

func (m *mpsInMemory) Do(ctx context.Context, s step.Step) error {
	m.w.pass()
	defer m.w.pass()
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := mps.Whole(gpu.UUID(s.GPU))
	switch s.Kind {
	case mps.KindStop:
		delete(m.running, d)
	case mps.KindStart:
		a, err := mps.Decode[mps.StartArgs](s.Args)
		if err != nil {
			return err
		}
		m.running[d] = &mps.State{GPU: d.GPU, Phase: mps.Running, PID: 1 << 22, Start: 1, Settings: &a.Settings}
	default:
		m.running[d].PID++
		m.running[d].Clients = nil
	}
	return nil
}

func (m *mpsInMemory) Undo(context.Context, step.Step) error { return nil }

func (w *virtual) held(reason string) {
	w.Helper()
	must(w.T, w.state.Store.Update(func(s *store.State) error {
		closing.CloseHeld(s, w.ids[1], 1, reason, "", w.Now())
		return nil
	}))
	w.converger.PlacesChanged()
}

func (w *virtual) post(target, body string) {
	w.Helper()
	if refusal := w.do(http.MethodPost, target, body, nil); refusal != nil {
		w.Fatal(refusal)
	}
}

// withLease gives the tenant a lease that can be frozen.
func (w *virtual) withLease(v *victim) {
	w.Helper()
	k, err := w.table.Submit(lease.Request{Tenant: "red", Admin: true, Kind: "timeslice"})
	must(w.T, err)
	_, _, err = w.table.Start(w.Context(), k.ID(), lease.Process{PID: v.pid, Start: v.start})
	must(w.T, err)
	l, _ := w.table.Get(k.ID())
	l.Isolation.Freeze = true
	w.table.SetIsolation(k.ID(), l.Isolation)
}

// shared is maintained with MPS on the second GPU.
var shared = strings.NewReplacer("index: 1}, mode: timeslice", "index: 1}, mode: mps", "timeslice: {share: 20%, gpu_memory: 1GiB}", "mps: {share: 20%, gpu_memory: 1GiB}").
	Replace(maintained)

// attached is a request to attach the process.
const attached = `{"tenant":"red","grant":"dev","pid":PID}`

func leavings() []leaving {
	post := func(name, target, body string, prepare func(*virtual, *leaving)) leaving {
		return leaving{name: name, method: http.MethodPost, target: target, body: body, prepare: prepare}
	}
	with := func(r leaving, spec string) leaving { r.spec = spec; return r }
	operation := func(r leaving) leaving { r.operation = true; return r }
	fromFile := func(r leaving) leaving { r.file = true; return r }
	repeats := func(r leaving) leaving { r.repeats = true; return r }
	running := func(r leaving) leaving { r.frozen = true; return r }
	process := func(r leaving) leaving { r.process = true; return r }
	attach := func(w *virtual, r *leaving) { w.post("/v1/leases/attach", r.named(w, attached)) }
	condition := func(w *virtual, _ *leaving) { w.Conditions.Set("test", "", "a test", "end it") }
	foreign := func(w *virtual, _ *leaving) {
		w.mustApply(strings.Replace(maintained, "[3g.20gb, 3g.20gb]", "[3g.20gb]", 1))
		w.createAs(0, halfAt(0)) // The other half is the layout's.
	}
	incomplete := func(w *virtual, r *leaving) {
		foreign(w, r)
		g := heldGPU{virtual: w}
		for _, in := range w.truth()[0].Instances {
			if in.Placement.Start == 0 {
				g.withoutCompute(in.ID)
			}
		}
	}
	return []leaving{
		{
			name: "/v1/spec", method: http.MethodPut, target: "/v1/spec",
			body: strings.Replace(maintained, "[3g.20gb, 3g.20gb]", "[2g.10gb, 2g.10gb]", 1), operation: true,
		},
		{
			name: "/v1/spec", method: http.MethodPut, target: "/v1/spec", // without a step
			body: strings.Replace(maintained, "max_leases: 4", "max_leases: 5", 1),
		},
		operation(post("/v1/unmanage", "/v1/unmanage", "", nil)),
		operation(post("/v1/unmanage", "/v1/unmanage?all=1", "", nil)),
		post("/v1/reload", "/v1/reload", "", nil),
		fromFile(post("/v1/reload", "/v1/reload", "", func(w *virtual, _ *leaving) {
			must(w.T, os.WriteFile(w.specFile, []byte(strings.Replace(maintained, "max_leases: 4", "max_leases: 5", 1)), 0o600))
		})),
		post("/v1/mig/import", "/v1/mig/import", `{"gpu":"0","start":[0]}`, foreign),
		operation(post("/v1/mig/import", "/v1/mig/import", `{"gpu":"0","start":[0]}`, incomplete)),
		operation(post("/v1/mig/remove", "/v1/mig/remove", `{"gpu":"0","start":[0]}`, foreign)),
		operation(post("/v1/gpus/{id}/retry", "/v1/gpus/1/retry", "", func(w *virtual, _ *leaving) { w.held("a test") })),
		operation(post("/v1/gpus/{id}/retry", "/v1/gpus/1/retry", "", func(w *virtual, _ *leaving) {
			w.health.XID(gpu.Event{GPU: w.ids[1], XID: 95})
			w.held("a test")
		})),
		post("/v1/gpus/{id}/cordon", "/v1/gpus/1/cordon", `{"reason":"its fan"}`, nil),
		post("/v1/gpus/{id}/uncordon", "/v1/gpus/1/uncordon", "", func(w *virtual, _ *leaving) { w.post("/v1/gpus/1/cordon", "{}") }),
		post("/v1/maintenance", "/v1/maintenance", `{"driver":true}`, nil),
		with(post("/v1/maintenance", "/v1/maintenance", `{"driver":true}`, nil), shared),
		post(
			"/v1/maintenance/off",
			"/v1/maintenance/off",
			"",
			func(w *virtual, _ *leaving) { w.post("/v1/maintenance", `{"driver":true}`) },
		),
		operation(repeats(with(post("/v1/mps/{id}/restart", "/v1/mps/1/restart", "", nil), shared))),
		with(post("/v1/mps/{id}/drain", "/v1/mps/1/drain", "", nil), shared),
		with(post("/v1/mps/{id}/resume", "/v1/mps/1/resume", "", func(w *virtual, _ *leaving) { w.post("/v1/mps/1/drain", "") }), shared),
		running(post("/v1/tenants/{name}/freeze", "/v1/tenants/red/freeze", "", nil)),
		running(
			post(
				"/v1/tenants/{name}/thaw",
				"/v1/tenants/red/thaw",
				"",
				func(w *virtual, _ *leaving) { w.post("/v1/tenants/red/freeze", "") },
			),
		),
		repeats(post("/v1/containers", "/v1/containers", `{"tenant":"red","grant":"dev"}`, nil)),
		post("/v1/engine/leases", "/v1/engine/leases", `{"key":"test:job-1","tenant":"red","grant":"dev","user":"root"}`, nil),
		post("/v1/conditions/{id}/ack", "/v1/conditions/CONDITION/ack", "{}", condition),
		post("/v1/conditions/{id}/unack", "/v1/conditions/CONDITION/unack", "", func(w *virtual, r *leaving) {
			condition(w, r)
			w.post(r.named(w, "/v1/conditions/CONDITION/ack"), "{}")
		}),
		repeats(process(post("/v1/leases", "/v1/leases", `{"tenant":"red","grant":"dev","command":["sleep"]}`, nil))),
		repeats(process(post("/v1/leases/attach", "/v1/leases/attach", attached, nil))),
		process(post("/v1/leases/{id}/release", "/v1/leases/LEASE/release", "", attach)),
		process(leaving{name: "/v1/leases/{id}", method: http.MethodDelete, target: "/v1/leases/LEASE", prepare: attach}),
		{
			name: "/v1/engine/leases/{key}", method: http.MethodDelete, target: "/v1/engine/leases/test:job-1",
			prepare: func(w *virtual, _ *leaving) {
				w.post("/v1/engine/leases", `{"key":"test:job-1","tenant":"red","grant":"dev","user":"root"}`)
			},
		},
	}
}

// Every route says what a caller means who leaves, and the walk below has each that changes something.
func TestEveryRouteSaysWhatALeavingCallerMeans(t *testing.T) {
	d, walked := newVirtualWithUsers(t), map[string]bool{}
	for _, r := range leavings() {
		walked[r.route()] = walked[r.route()] || r.operation
	}
	rows := map[server.Action][]string{}
	for _, r := range d.routes() {
		name := r.Method + " " + r.Pattern
		operation, ok := walked[name]
		want := server.GoesOn("")
		if operation {
			want = server.Operation("")
		}
		switch {
		case r.Method == http.MethodGet:
			continue
		case !ok:
			t.Errorf("%s is not walked: add it to leavings", name)
		case r.Audit.Leaving != want.Leaving:
			t.Errorf("%s: its action is %+v, and the walk has operation: %v", name, r.Audit, operation)
		}
		rows[want] = append(rows[want], "`"+name+"`")
	}
	text, err := os.ReadFile("../docs/api.md")
	must(t, err)
	for action, what := range map[server.Action]string{
		server.GoesOn(""):    "it goes on to its end",
		server.Operation(""): "the daemon carries out its operation, also after a restart",
	} {
		slices.Sort(rows[action])
		if row := "| " + what + " | " + strings.Join(rows[action], ", ") + " |"; !strings.Contains(string(text), row) {
			t.Errorf("docs/api.md lacks the row %q", row)
		}
	}
}

// A caller may leave at any point of a request that changes something: then nothing was changed, or it goes on to its end without them.
// The answer says which, and so does the audit. The same request again gives what it gives to a caller who stays.
func TestACallerLeavesAtEachPoint(t *testing.T) {
	for i, r := range leavings() {
		if !enumeration.Runs(i, 9) {
			continue
		}
		t.Run(fmt.Sprint(i, " ", r.route()), func(t *testing.T) {
			t.Parallel()
			within := func(f func(t *testing.T)) {
				t.Helper()
				if r.frozen || r.process {
					r.victim = newVictim(t)
					defer r.victim.end()
				}
				if r.process {
					t.Run("", f)
				} else {
					synctest.Test(t, f)
				}
			}
			var before, after string
			var points int64
			within(func(t *testing.T) {
				w := r.stage(t)
				before = w.shot()
				operations := len(w.Operations.List())
				passed, done, answer := r.send(t, w, 0)
				if begun := len(w.Operations.List()) > operations; begun != r.operation {
					t.Errorf("an operation is begun: %v", begun)
				}
				if !done {
					t.Fatalf("to a caller who stays the answer is %s", answer)
				}
				after, points = w.shot(), passed
			})
			if t.Failed() {
				return
			}
			begun := 0
			for at := int64(1); at <= points && !t.Failed(); at++ {
				if at > 1 && !enumeration.Runs(int(at), 9) {
					continue
				}
				within(func(t *testing.T) {
					w := r.stage(t)
					if now := w.shot(); now != before {
						t.Fatalf("the node differs before it:\n%s", differs(before, now))
					}
					_, done, answer := r.send(t, w, at)
					want, what := before, "refused"
					if at == 1 && done {
						t.Fatalf("it begins although its caller had left: %s", answer)
					}
					if done {
						want, what = after, "done"
						begun++
					}
					if now := w.shot(); now != want {
						t.Fatalf(
							"left at point %d of %d, it is %s (%s), and the node differs:\n%s",
							at,
							points,
							what,
							answer,
							differs(want, now),
						)
					}
					if r.repeats && done {
						return
					}
					r.send(t, w, 0)
					if now := w.shot(); now != after {
						t.Fatalf(
							"left at point %d of %d, it is %s, and after the next request the node differs:\n%s",
							at,
							points,
							what,
							differs(after, now),
						)
					}
				})
			}
			t.Logf("%d points, of which %d are after it begins", points, begun)
		})
	}
}
