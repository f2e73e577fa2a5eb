package daemon

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
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
		if e := refused("base: 1\n" + first + "  - name: blue\n    tasks: 7\n"); len(e.Stale.Lost) != 0 ||
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
