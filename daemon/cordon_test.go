package daemon

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/scenarios"
)

// A cordoned GPU takes no new lease, and those that run continue: over an apply, a restart of the daemon and a boot, until it is
// uncordoned.
func TestCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const spec = "version: v1\nnode: {enforce: on, isolation: {logins: open}}\ngpus: [{select: {index: 0}, mode: timeslice}]\ntenants:\n" +
			"  - {name: red, grants: [{name: part, timeslice: {share: 20%, gpu_memory: 1GiB}, max_leases: 4}]}\n"
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
		w.startDaemon()
		if _, op, refusal := w.apply(spec, ""); refusal != nil || op != nil && op.State != "done" {
			t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
		}
		// submitted reports whether a lease gets a place now.
		submitted := func() bool {
			t.Helper()
			k, err := w.table.Submit(lease.Request{Tenant: "red", Admin: true})
			if err != nil {
				return false
			}
			synctest.Wait()
			l, placed := w.table.Get(k.ID())
			return placed && len(l.Place.GPUs) == 1
		}
		cordon := func(body string) (r api.CordonResult) {
			t.Helper()
			if refusal := w.do(http.MethodPost, "/v1/gpus/0/cordon", body, &r); refusal != nil {
				t.Fatal(refusal)
			}
			return r
		}
		if !submitted() {
			t.Fatalf("no lease gets a place: %+v\n%s", w.table.List(), w.log)
		}
		for _, bad := range []string{`{"reason":"a\nb"}`, `{"reason":"` + strings.Repeat("x", 501) + `"}`} {
			if refusal := w.do(http.MethodPost, "/v1/gpus/0/cordon", bad, nil); refusal == nil || refusal.Kind != api.KindInvalid {
				t.Errorf("a reason is answered with %v", refusal)
			}
		}
		first := cordon(`{"reason":"its fan"}`)
		if !first.Changed || len(first.Leases) != 1 || first.Cordoned == nil || first.Cordoned.Reason != "its fan" ||
			first.Cordoned.By == "" {
			t.Errorf("the answer is %+v", first)
		}
		if again := cordon("{}"); again.Changed || again.Cordoned.Reason != "its fan" {
			t.Errorf("the second answer is %+v", again)
		}
		stillCordoned := func(when string) {
			t.Helper()
			g := w.statusNow().GPUs[0]
			if g.State != "cordoned" || g.Cordoned == nil || !g.Cordoned.Since.Equal(first.Cordoned.Since) ||
				!strings.Contains(g.Reason, "(its fan); 'gpushare gpu uncordon 0' ends that") {
				t.Errorf("%s it is %s: %s, %+v", when, g.State, g.Reason, g.Cordoned)
			}
			if submitted() {
				t.Errorf("%s it takes a lease", when)
			}
		}
		stillCordoned("at once")
		if _, op, refusal := w.apply(strings.Replace(spec, "20%", "25%", 1), ""); refusal != nil || op != nil && op.State != "done" {
			t.Fatalf("%v, %+v", refusal, op)
		}
		stillCordoned("after an apply")
		w.end()
		w.startDaemon()
		stillCordoned("after a restart")
		w.reboot()
		w.waitIdle(nil)
		stillCordoned("after a boot")

		var r api.CordonResult
		for _, changed := range []bool{true, false} {
			if refusal := w.do(http.MethodPost, "/v1/gpus/0/uncordon", "", &r); refusal != nil || r.Changed != changed ||
				r.Cordoned != nil {
				t.Errorf("uncordon: %v, %+v", refusal, r)
			}
			r = api.CordonResult{}
		}
		if g := w.statusNow().GPUs[0]; g.State != "ok" || g.Cordoned != nil || !submitted() {
			t.Errorf("at the end it is %s: %s", g.State, g.Reason)
		}
	})
}
