package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/test/scenarios"
)

func TestResetsAreFoundInSteps(t *testing.T) {
	mode := func(id gpu.UUID, reset bool) step.Step {
		return step.Step{Kind: mig.KindMode, GPU: string(id), Args: step.Must(mig.ModeArgs{On: true, Reset: reset})}
	}
	steps := []step.Step{mode("GPU-2", true), mode("GPU-3", false), {Kind: KindComputeMode, GPU: "GPU-4", Args: step.Must(computeModeArgs{gpu.ComputeDefault})}, mode(observetest.One, true)}
	if diff := cmp.Diff([]gpu.UUID{"GPU-2", observetest.One}, resetsOf(steps)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Before a reset is allowed, it is said what goes with it.
func TestWhatGoesWithAReset(t *testing.T) {
	at := func(id gpu.UUID, index int, pci string) observe.GPU {
		return observetest.With(observetest.Device(false), func(g *observe.GPU) { g.Identity = gpu.Identity{UUID: id, Index: index, PCI: pci} })
	}
	node := &observe.Node{GPUs: []observe.GPU{at(observetest.One, 1, "0000:07:00.0"), at("GPU-2", 2, "0000:0f:00.0"), at("GPU-3", 3, "0000:47:00.0")}}
	const nvswitch, manager = "proc/driver/nvidia-nvswitch/devices/0000:c4:00.0/information", "proc/815/comm"
	bridge := gpu.NVLinks{Peers: []string{"0000:0f:00.0"}, Down: 8}
	for _, c := range []struct {
		name  string
		files []string
		links map[gpu.UUID]gpu.NVLinks // whose are missing cannot be read
		reset []gpu.UUID               // the one, if empty
		use   map[gpu.UUID]string      // leases
		want  []string
	}{
		{name: "no NVLink", links: map[gpu.UUID]gpu.NVLinks{observetest.One: {}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with no other GPU; no fabric manager runs",
		}},
		{name: "no bridge", links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Down: 12}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with no other GPU: its 12 links are down; no fabric manager runs",
		}},
		{name: "a bridge", links: map[gpu.UUID]gpu.NVLinks{observetest.One: bridge}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with GPU 2 (GPU-2), which must be idle too; no fabric manager runs",
		}},
		{name: "a bridge to somebody", links: map[gpu.UUID]gpu.NVLinks{observetest.One: bridge}, use: map[gpu.UUID]string{observetest.One: "red-big-1", "GPU-2": "red-big-2", "GPU-3": "red-big-3"}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with GPU 2 (GPU-2), which must be idle too; no fabric manager runs",
			"GPU 2 (GPU-2) is in use by red-big-2, pid 42 (python), and must be idle for the reset of GPU 1: the driver may refuse that, or harm them",
		}},
		{name: "both of a bridge", reset: []gpu.UUID{observetest.One, "GPU-2"}, use: map[gpu.UUID]string{"GPU-2": "red-big-2"}, links: map[gpu.UUID]gpu.NVLinks{observetest.One: bridge, "GPU-2": {Peers: []string{"0000:07:00.0"}}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with GPU 2 (GPU-2), to be reset too; no fabric manager runs",
			"GPU 2 (GPU-2) is reset, and no GPU outside of this plan: NVLink joins it with GPU 1 (GPU-1), to be reset too; no fabric manager runs",
		}},
		{
			name: "two that share a peer, and one that is not seen", reset: []gpu.UUID{observetest.One, "GPU-2"}, use: map[gpu.UUID]string{"GPU-3": "red-big-3"},
			links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Peers: []string{"0000:47:00.0", "0000:99:00.0"}, Unknown: 2}, "GPU-2": {Peers: []string{"0000:47:00.0"}}},
			want: []string{
				"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with GPU 3 (GPU-3) and a GPU at 0000:99:00.0 that is not seen here, which must be idle too; 2 of its NVLinks lead to what the driver does not name; no fabric manager runs",
				"GPU 2 (GPU-2) is reset, and no GPU outside of this plan: NVLink joins it with GPU 3 (GPU-3), which must be idle too; no fabric manager runs",
				"GPU 3 (GPU-3) is in use by red-big-3, pid 42 (python), and must be idle for the reset of GPU 1 and GPU 2: the driver may refuse that, or harm them",
			},
		},
		{name: "switches without a manager", files: []string{nvswitch}, links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Switches: 12}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: 1 NVSwitches of this host join it with every other GPU there, and some boards are only reset together; the fabric manager does not run: no GPU can be used after a reset before it does",
		}},
		{name: "switches and a manager, links down", files: []string{nvswitch, manager}, links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Down: 12}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: 1 NVSwitches of this host join it with every other GPU there, and some boards are only reset together; the fabric manager runs (pid 815)",
		}},
		{name: "a guest's switches, which its host has", links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Switches: 12}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: 12 of its NVLinks lead to NVSwitches, which join it with every other GPU there, and some boards are only reset together; no fabric manager runs",
		}},
		{name: "links that cannot be read", want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: which GPUs a bridge joins it with is not known (not supported): 'nvidia-smi nvlink --status' may tell, and those must be idle too; no fabric manager runs",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for _, f := range c.files {
				if err := os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, f), []byte("nv-fabricmanage\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if len(c.reset) == 0 {
				c.reset = []gpu.UUID{observetest.One}
			}
			use := nobody()
			use.gpu = func(id gpu.UUID) []string {
				if l := c.use[id]; l != "" {
					return []string{l}
				}
				return nil
			}
			use.opened.gpus = map[gpu.UUID][]int{}
			for id := range c.use {
				use.opened.gpus[id] = []int{42}
			}
			f := readFabric(t.Context(), root, c.reset, func(_ context.Context, id gpu.UUID) (gpu.NVLinks, error) {
				l, ok := c.links[id]
				if !ok {
					return l, gpu.ErrNotSupported
				}
				return l, nil
			})
			if diff := cmp.Diff(c.want, f.tell(c.reset, node, use)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The links are asked for when something is reset, once a GPU, and at no other time; whatever comes of it, the plan stands.
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
		return fmt.Sprintf("version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: %d}, mode: mig, mig: {layout: [3g.20gb]}}\n", index)
	}
	for _, c := range []struct {
		name  string
		fault *gpusim.Fault
		index int
		query string
		says  string // in the plan's warnings, or in the refusal's hint
		calls uint64
		lasts time.Duration // at least
	}{
		{name: "no reset", index: 2, query: "?check=1"},
		{name: "no reset, which is allowed", index: 2, query: "?check=1&allow-reset=1"},
		{name: "a reset", query: "?check=1&allow-reset=1", says: bridged, calls: 1},
		{name: "a reset that is not allowed", query: "?check=1", says: "what goes with a reset of GPU 0: " + bridged, calls: 1},
		{name: "the read fails", query: "?check=1&allow-reset=1", fault: &gpusim.Fault{Do: gpusim.FaultFail}, says: "a bridge joins it with is not known (cannot read the NVLinks on GPU-", calls: 1},
		{name: "the read hangs", query: "?check=1&allow-reset=1", fault: &gpusim.Fault{Do: gpusim.FaultHang}, says: "the driver did not answer in time", calls: 1, lasts: 2 * time.Second},
		{name: "the read hangs, and it is not allowed", query: "?check=1", fault: &gpusim.Fault{Do: gpusim.FaultHang}, says: "the driver did not answer in time", calls: 1, lasts: 2 * time.Second},
		{name: "carried out", query: "?allow-reset=1", says: bridged, calls: 1},
		{name: "carried out, over a read that failed", query: "?allow-reset=1", fault: &gpusim.Fault{Do: gpusim.FaultFail}, says: "not known", calls: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				off := scenarios.Board{Model: "a100-40"}
				cfg := virtualConfig(t, nil, off, off, scenarios.Board{Model: "a100-40", MIG: true})
				cfg.Bridges = [][]int{{0, 1}}
				w := newVirtualOf(t, cfg)
				w.live()
				w.settled(nil)
				if c.fault != nil {
					c.fault.Call = "DeviceGetNvLink*"
					if _, err := w.node.AddFault(*c.fault); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				res, op, refusal := w.apply(layout(c.index), c.query)
				if took := time.Since(began); took < c.lasts || c.lasts > 0 && took > c.lasts+observe.Timeout {
					t.Errorf("it lasts %v, want %v and little more", took, c.lasts)
				}
				said := res.Plan.Warnings
				if !strings.Contains(c.query, "allow-reset") && c.says != "" {
					if refusal == nil || refusal.Kind != api.KindInfeasible {
						t.Fatalf("without --allow-reset it is answered with %+v, %v", res.Plan, refusal)
					}
					said = []string{refusal.Hint}
				} else if refusal != nil || len(res.Plan.Steps) == 0 {
					t.Fatalf("there is no plan: %v", refusal)
				}
				if !strings.Contains(c.query, "check") && (op == nil || op.State != "done" || w.truth()[0].Resets != 1 || w.truth()[1].Resets != 0) {
					t.Errorf("it ends %+v\n%s", op, w.log)
				}
				if told := slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "NVLink") || strings.Contains(s, "bridge") }); told != (c.says != "") || !strings.Contains(strings.Join(said, "\n"), c.says) {
					t.Errorf("it says %q, want %q", said, c.says)
				}
				if n := calls(w); n != c.calls {
					t.Errorf("links were asked for %d times, want %d", n, c.calls)
				}
			})
		})
	}
}
