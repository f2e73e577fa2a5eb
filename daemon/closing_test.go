package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/scenarios"
)

// closedAs says for each GPU by what kinds it, its instances and its MPS are closed.
func (w *virtual) closedAs() (out []string) {
	w.Helper()
	for _, g := range w.statusNow().GPUs {
		var kinds []string
		for _, c := range g.Closures {
			kinds = append(kinds, strings.TrimSpace(c.Kind+" "+c.Tenant))
		}
		out = append(out, strings.Join(kinds, ", "))
	}
	return out
}

// writeStateWithoutClosures writes a state of the last version that had no list of closures, about the GPUs of this node.
func (w *virtual) writeStateWithoutClosures() {
	w.Helper()
	b, err := os.ReadFile("../testdata/state/format-2-without-closures.json")
	if err != nil {
		w.Fatal(err)
	}
	header, content, _ := strings.Cut(string(b), "\n")
	sum := func() string { s := sha256.Sum256([]byte(content)); return hex.EncodeToString(s[:]) }
	before := sum()
	content = strings.Replace(content, `"resolved":{"gpus":{"GPU-0":0}`, `"resolved":{"gpus":{}`, 1) // Its spec has no GPU.
	for i, id := range w.ids {
		content = strings.ReplaceAll(content, fmt.Sprintf(`"GPU-%d"`, i), fmt.Sprintf("%q", id))
	}
	content = strings.Replace(content, `"driver":true,"parked":true,`, "", 1) // Its driver is not replaced.
	dir := filepath.Join(w.dir, "state")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.Fatal(err)
	}
	file := strings.Replace(header, before, sum(), 1) + "\n" + content
	if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte(file), 0o600); err != nil {
		w.Fatal(err)
	}
}

// What an older version closed is closed after an upgrade, for what it was closed for: also when the daemon is killed before and after it
// writes for the first time.
func TestClosedPlacesAreUpgraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := scenarios.Board{Model: "a100-40"}
		w := newVirtual(t, nil, board, board, board, board, board)
		w.writeStateWithoutClosures()
		want := []string{"drained, held-back blue", "held, unhealthy, cordoned", "held", "cordoned, held-back red", "unhealthy"}
		check := func(when string) {
			t.Helper()
			w.startDaemon()
			w.waitIdle(nil)
			if diff := cmp.Diff(want, w.closedAs()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
			s := w.statusNow()
			at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
			if m := s.Node.Maintenance; m == nil || m.By != "root" || m.Reason != "driver 580" || !m.Since.Equal(at.Add(11*time.Minute)) {
				t.Errorf("%s the maintenance is %+v", when, m)
			}
			if c := s.GPUs[3].Cordoned; c == nil || c.By != "alice" || !c.Since.Equal(at.Add(8*time.Minute)) {
				t.Errorf("%s GPU 3 is cordoned by %+v", when, c)
			}
		}
		check("at the first start")
		w.kill()
		check("after a SIGKILL")
		if refusal := w.do(http.MethodPost, "/v1/gpus/1/uncordon", "", nil); refusal != nil {
			t.Fatal(refusal)
		}
		w.kill()
		want[1] = "held, unhealthy"
		check("after a write and a SIGKILL")
	})
}

// A GPU that is closed for several reasons says all of them to who asks for a lease, and who ends one of them leaves the others.
func TestAGPUThatIsClosedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const spec = "version: v1\nnode: {enforce: on, isolation: {logins: open}}\ngpus: [{select: {index: 0}, mode: timeslice}]\ntenants:\n" +
			"  - {name: red, grants: [{name: part, timeslice: {share: 20%, gpu_memory: 1GiB}, max_leases: 4}]}\n"
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
		w.startDaemon()
		if _, op, refusal := w.apply(spec, ""); refusal != nil || op != nil && op.State != "done" {
			t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
		}
		post := func(path string) func() {
			return func() {
				t.Helper()
				body := ""
				if strings.HasSuffix(path, "/cordon") || strings.HasSuffix(path, "/maintenance") {
					body = "{}"
				}
				if refusal := w.do(http.MethodPost, path, body, nil); refusal != nil {
					t.Fatalf("%s: %v", path, refusal)
				}
			}
		}
		leave := func() {
			err := w.state.Store.Update(func(s *store.State) error {
				closing.CloseHeld(s, w.ids[0], 1, "a step failed", "", w.Now())
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			w.converger.PlacesChanged()
		}
		for _, step := range []struct {
			name    string
			do      func()
			kinds   string
			refusal string // what a request is refused with; empty: it gets a place
		}{
			{"it is cordoned", post("/v1/gpus/0/cordon"), "cordoned", "GPU 0 is closed: it is cordoned"},
			{"and unhealthy", func() { w.health.XID(gpu.Event{GPU: w.ids[0], XID: 95}) }, "unhealthy, cordoned", ", and it is cordoned"},
			{"and held", leave, "held, unhealthy, cordoned", "GPU 0 is closed: it is held, and it is unhealthy: XID 95"},
			{"the cordon ends", post("/v1/gpus/0/uncordon"), "held, unhealthy", "GPU 0 is closed: it is held, and it is unhealthy: XID 95"},
			{"it is cordoned again", post("/v1/gpus/0/cordon"), "held, unhealthy, cordoned", ", and it is cordoned"},
			{"a retry ends the other two", post("/v1/gpus/0/retry"), "cordoned", "GPU 0 is closed: it is cordoned"},
			{"a maintenance begins", post("/v1/maintenance"), "cordoned", "the node is in maintenance: root closed it"},
			{"and ends", post("/v1/maintenance/off"), "cordoned", "GPU 0 is closed: it is cordoned"},
			{"a restart", func() { w.end(); w.startDaemon(); w.waitIdle(nil) }, "cordoned", "GPU 0 is closed: it is cordoned"},
			{"the last reason ends", post("/v1/gpus/0/uncordon"), "", ""},
		} {
			step.do()
			w.waitIdle(nil)
			if got := w.closedAs()[0]; got != step.kinds {
				t.Errorf("%s: closed by %q, want %q", step.name, got, step.kinds)
			}
			_, err := w.table.Submit(lease.Request{Tenant: "red", Admin: true})
			if step.refusal == "" && err != nil || step.refusal != "" && (err == nil || !strings.Contains(err.Error(), step.refusal)) {
				t.Errorf("%s: a request is answered with %v, want %q", step.name, err, step.refusal)
			}
		}
		if g := w.statusNow().GPUs[0]; g.State != "ok" || g.Reason != "" {
			t.Errorf("at the end it is %s: %s", g.State, g.Reason)
		}
	})
}
