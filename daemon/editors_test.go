package daemon

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/test/scenarios"
)

// Two people edit the same generation. The second is refused, and sees what of the first would be lost.
func TestStaleBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
		w.startDaemon()
		const first = "version: v1\ngpus:\n  - select: {index: 0}\n    mode: timeslice\ntenants:\n  - name: red\n    grants: [{name: g, timeslice: {share: 40%}}]\n"
		refused := func(spec string) *api.Error {
			t.Helper()
			_, _, refusal := w.apply(spec, "")
			if refusal == nil || refusal.Kind != api.KindConflict {
				t.Fatalf("it is not refused with a conflict: %+v", refusal)
			}
			return refusal
		}
		if e := refused("base: 3\n" + first); !strings.Contains(e.Message, "edited from generation 3, and this node has none yet") ||
			e.Stale != nil {
			t.Errorf("before the first apply: %+v", e)
		}
		for _, spec := range []string{first, "base: 1\n" + first + "  - name: blue\n    tasks: 7\n"} {
			if _, _, refusal := w.apply(spec, ""); refusal != nil {
				t.Fatal(refusal)
			}
		}
		e := refused("base: 1\n" + strings.Replace(first, "40%", "50%", 1))
		s := e.Stale
		if s == nil || s.Base != 1 || s.Generation != 2 || s.By != "root" || s.At.IsZero() ||
			strings.Join(s.Lost, "|") != "+   - name: blue|+     tasks: 7" {
			t.Fatalf("it says %+v: %s", s, e.Message)
		}
		if !strings.Contains(e.Message, "edited from generation 1, and generation 2 is in force, by root at 2") ||
			!strings.HasSuffix(e.Message, "; 2 lines of what others changed since would be lost") {
			t.Errorf("it says %s", e.Message)
		}
		if e := refused("base: 1\n" + first + "  - name: blue\n    tasks: 7\n  - name: teal\n"); len(e.Stale.Lost) != 0 ||
			!strings.HasSuffix(e.Message, "the spec has every line of it") {
			t.Errorf("a spec that has the change of the other: %+v: %s", e.Stale, e.Message)
		}
		if e := refused("base: 9\n" + first); !e.Stale.Unknown || len(e.Stale.Lost) != 2 ||
			!strings.Contains(e.Message, "generation 9 is not kept") {
			t.Errorf("a base that is not kept: %+v: %s", e.Stale, e.Message)
		}
		if _, _, refusal := w.apply(first, ""); refusal != nil {
			t.Errorf("without a base it is refused: %v", refusal)
		}
	})
}

// A file that was edited from an earlier generation is applied twice, or with the same words as that of another: nothing would be lost, so
// nothing is refused and nothing changes. An explicit precondition is still one.
func TestEqualSpecsAreNoChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
		w.startDaemon()
		const first = "version: v1\nnode: {enforce: on}\ngpus:\n  - select: {index: 0}\n    mode: timeslice\ntenants:\n  - name: red\n    grants: [{name: g, timeslice: {share: 40%}}]\n"
		edited := "base: 1\n" + strings.Replace(first, "40%", "50%", 1)
		for _, spec := range []string{first, edited} {
			if _, _, refusal := w.apply(spec, ""); refusal != nil {
				t.Fatal(refusal)
			}
		}
		for _, again := range []string{
			edited, strings.Replace(edited, "base: 1", "base: 9", 1), strings.Replace(edited, "base: 1\n", "# a comment\nbase: 2\n", 1),
		} {
			for _, query := range []string{"", "?check=true"} {
				out, _, refusal := w.apply(again, query)
				if refusal != nil {
					t.Fatalf("%q: %v: %s", query, refusal, again)
				}
				if out.Changed || out.Generation != 2 || !out.Plan.Empty {
					t.Errorf("%q changes something: %+v: %s", query, out, again)
				}
			}
		}
		if got := w.state.Desired().Generation; got != 2 {
			t.Errorf("generation %d is in force", got)
		}
		q := httptest.NewRequestWithContext(
			context.WithValue(t.Context(), server.PeerKey{}, &server.Peer{}), http.MethodPut, "/v1/spec", strings.NewReader(edited),
		)
		q.Host = "gpushare"
		q.Header.Set("If-Match", `"1"`)
		rec := httptest.NewRecorder()
		w.server.Handler().ServeHTTP(rec, q)
		if e := servertest.ErrorOf(t, rec); e.Kind != api.KindConflict {
			t.Errorf("with If-Match: %+v", e)
		}
	})
}

// On a node that only observes the steps of a spec are planned at each apply, and never carried out: a second apply of it is no change.
func TestObservedSpecIsNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
		w.startDaemon()
		const spec = "version: v1\ngpus:\n  - select: {index: 0}\n    mode: timeslice\ntenants:\n  - name: red\n    grants: [{name: g, timeslice: {share: 40%}}]\n"
		for i, query := range []string{"?check=true", "", "?check=true", ""} {
			out, _, refusal := w.apply(spec, query)
			if refusal != nil {
				t.Fatal(refusal)
			}
			if out.Changed != (i < 2) || len(out.Plan.Steps) == 0 || !out.Plan.Observe {
				t.Errorf("apply %d: changed is %v, with %d steps", i, out.Changed, len(out.Plan.Steps))
			}
		}
	})
}
