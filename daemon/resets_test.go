package daemon

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/test/scenarios"
)

// The NVLinks are read once for each GPU that is reset, and at no other time. The plan does not depend on the result.
func TestLinksAreReadForResets(t *testing.T) {
	const bridged = "NVLink joins it with GPU 1 (GPU-"
	calls := func(w *virtual) (n uint64) {
		for name, k := range w.node.Counters().Calls {
			if strings.Contains(name, "NvLink") {
				n += k
			}
		}
		return n
	}
	layout := func(index int) string {
		return fmt.Sprintf(
			"version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: %d}, mode: mig, mig: {layout: [3g.20gb]}}\n", index,
		)
	}
	for _, c := range []struct {
		name   string
		fault  *gpusim.Fault
		index  int
		query  string
		reason string // in the plan's warnings, or in the refusal's hint
		calls  uint64
		lasts  time.Duration // at least
	}{
		{name: "no reset", index: 2, query: "?check=1"},
		{name: "no reset, which is allowed", index: 2, query: "?check=1&allow-reset=1"},
		{name: "a reset", query: "?check=1&allow-reset=1", reason: bridged, calls: 1},
		{name: "a reset that is not allowed", query: "?check=1", reason: "effects of a reset of GPU 0: " + bridged, calls: 1},
		{name: "the read fails", query: "?check=1&allow-reset=1", fault: &gpusim.Fault{Do: gpusim.FaultFail}, reason: "a bridge joins it with are unknown (cannot read the NVLinks on GPU-", calls: 1},
		{name: "the read hangs", query: "?check=1&allow-reset=1", fault: &gpusim.Fault{Do: gpusim.FaultHang}, reason: "the driver did not answer in time", calls: 1, lasts: 2 * time.Second},
		{name: "the read hangs, and it is not allowed", query: "?check=1", fault: &gpusim.Fault{Do: gpusim.FaultHang}, reason: "the driver did not answer in time", calls: 1, lasts: 2 * time.Second},
		{name: "carried out", query: "?allow-reset=1", reason: bridged, calls: 1},
		{name: "carried out, over a read that failed", query: "?allow-reset=1", fault: &gpusim.Fault{Do: gpusim.FaultFail}, reason: "are unknown", calls: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				off := scenarios.Board{Model: "a100-40"}
				cfg := virtualConfig(t, nil, off, off, scenarios.Board{Model: "a100-40", MIG: true})
				cfg.Bridges = [][]int{{0, 1}}
				w := newVirtualOf(t, cfg)
				w.startDaemon()
				w.waitIdle(nil)
				if c.fault != nil {
					c.fault.Call = "DeviceGetNvLink*"
					if _, err := w.node.AddFault(*c.fault); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				res, op, refusal := w.apply(layout(c.index), c.query)
				if elapsed := time.Since(began); elapsed < c.lasts || c.lasts > 0 && elapsed > c.lasts+observe.Timeout {
					t.Errorf("it takes %v, want %v and little more", elapsed, c.lasts)
				}
				warnings := res.Plan.Warnings
				if !strings.Contains(c.query, "allow-reset") && c.reason != "" {
					if refusal == nil || refusal.Kind != api.KindNeedsPermission || refusal.Plan == nil || len(refusal.Plan.Steps) == 0 {
						t.Fatalf("without --allow-reset it is answered with %+v, %v", res.Plan, refusal)
					}
					warnings = []string{refusal.Hint}
				} else if refusal != nil || len(res.Plan.Steps) == 0 {
					t.Fatalf("there is no plan: %v", refusal)
				}
				if !strings.Contains(c.query, "check") &&
					(op == nil || op.State != "done" || w.truth()[0].Resets != 1 || w.truth()[1].Resets != 0) {
					t.Errorf("it ends %+v\n%s", op, w.log)
				}
				if found := slices.ContainsFunc(
					warnings, func(s string) bool { return strings.Contains(s, "NVLink") || strings.Contains(s, "bridge") },
				); found != (c.reason != "") ||
					!strings.Contains(strings.Join(warnings, "\n"), c.reason) {
					t.Errorf("it says %q, want %q", warnings, c.reason)
				}
				if n := calls(w); n != c.calls {
					t.Errorf("the NVLinks were read %d times, want %d", n, c.calls)
				}
			})
		})
	}
}

// A retry with the permission to reset some GPUs resets no other one.
func TestARetryHasThePermissionForItsGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtualOf(t, virtualConfig(t, nil, scenarios.Board{Model: "a100-40", MIG: true}))
		w.startDaemon()
		w.waitIdle(nil)
		w.mustApply("version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb]}}\n")
		removeByHand(t, w)
		if err := errors.Join(setMode(w, false), w.node.ResetGPU("0", os.Getpid())); err != nil {
			t.Fatal(err)
		}
		w.waitIdle(nil)
		resets := w.truth()[0].Resets
		refusal := w.do("POST", "/v1/gpus/0/retry?reset=GPU-00000000-0000-4000-8000-000000000000", "", nil)
		if refusal == nil || refusal.Kind != api.KindNeedsPermission || !slices.Equal(refusal.Resets, []string{string(w.ids[0])}) ||
			w.truth()[0].Resets != resets {
			t.Fatalf(
				"with the permission for another one it is answered with %+v, and the GPU was reset %d times",
				refusal,
				w.truth()[0].Resets,
			)
		}
		if refusal := w.do("POST", "/v1/gpus/0/retry?reset="+string(w.ids[0]), "", nil); refusal != nil {
			t.Fatalf("with the permission for it it is answered with %+v", refusal)
		}
		w.waitIdle(nil)
		if g := w.truth()[0]; g.Resets <= resets || len(g.Instances) != 1 {
			t.Errorf("after the retry it was reset %d times, and has %+v", g.Resets, g.Instances)
		}
	})
}
