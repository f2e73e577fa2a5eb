package change

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/daemon/planner/plannertest"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
)

// A plan lists the effects of a reset before it is allowed.
func TestResetWarnings(t *testing.T) {
	at := func(id gpu.UUID, index int, pci string) observe.GPU {
		return observetest.With(
			observetest.Device(false), func(g *observe.GPU) { g.Identity = gpu.Identity{UUID: id, Index: index, PCI: pci} },
		)
	}
	node := &observe.Node{
		GPUs: []observe.GPU{at(observetest.One, 1, "0000:07:00.0"), at("GPU-2", 2, "0000:0f:00.0"), at("GPU-3", 3, "0000:47:00.0")},
	}
	const nvswitch, manager = "proc/driver/nvidia-nvswitch/devices/0000:c4:00.0/information", "proc/815/comm"
	bridge := gpu.NVLinks{Peers: []string{"0000:0f:00.0"}, Down: 8}
	for _, c := range []struct {
		name  string
		files []string
		links map[gpu.UUID]gpu.NVLinks // those of other GPUs cannot be read
		reset []gpu.UUID               // empty: GPU-1
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
		{name: "a bridge to a GPU in use", links: map[gpu.UUID]gpu.NVLinks{observetest.One: bridge}, use: map[gpu.UUID]string{observetest.One: "red-big-1", "GPU-2": "red-big-2", "GPU-3": "red-big-3"}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with GPU 2 (GPU-2), which must be idle too; no fabric manager runs",
			"GPU 2 (GPU-2) is in use by red-big-2, pid 42 (python), and must be idle for the reset of GPU 1: the driver may refuse the reset, or those processes may fail",
		}},
		{name: "both of a bridge", reset: []gpu.UUID{observetest.One, "GPU-2"}, use: map[gpu.UUID]string{"GPU-2": "red-big-2"}, links: map[gpu.UUID]gpu.NVLinks{observetest.One: bridge, "GPU-2": {Peers: []string{"0000:07:00.0"}}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with GPU 2 (GPU-2), to be reset too; no fabric manager runs",
			"GPU 2 (GPU-2) is reset, and no GPU outside of this plan: NVLink joins it with GPU 1 (GPU-1), to be reset too; no fabric manager runs",
		}},
		{
			name: "two that share a peer, and one that is not visible", reset: []gpu.UUID{observetest.One, "GPU-2"}, use: map[gpu.UUID]string{"GPU-3": "red-big-3"},
			links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Peers: []string{"0000:47:00.0", "0000:99:00.0"}, Unknown: 2}, "GPU-2": {Peers: []string{"0000:47:00.0"}}},
			want: []string{
				"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: NVLink joins it with GPU 3 (GPU-3) and a GPU at 0000:99:00.0 that is not visible here, which must be idle too; 2 of its NVLinks lead to devices that the driver does not name; no fabric manager runs",
				"GPU 2 (GPU-2) is reset, and no GPU outside of this plan: NVLink joins it with GPU 3 (GPU-3), which must be idle too; no fabric manager runs",
				"GPU 3 (GPU-3) is in use by red-big-3, pid 42 (python), and must be idle for the reset of GPU 1 and GPU 2: the driver may refuse the reset, or those processes may fail",
			},
		},
		{name: "switches without a manager", files: []string{nvswitch}, links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Switches: 12}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: 1 NVSwitches of this host join it with every other GPU there, and some boards are only reset together; the fabric manager does not run: after a reset no GPU can be used until it runs",
		}},
		{name: "switches and a manager, links down", files: []string{nvswitch, manager}, links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Down: 12}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: 1 NVSwitches of this host join it with every other GPU there, and some boards are only reset together; the fabric manager runs (pid 815)",
		}},
		{name: "NVSwitches that only the hypervisor sees", links: map[gpu.UUID]gpu.NVLinks{observetest.One: {Switches: 12}}, want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: 12 of its NVLinks lead to NVSwitches, which join it with every other GPU there, and some boards are only reset together; no fabric manager runs",
		}},
		{name: "links that cannot be read", want: []string{
			"GPU 1 (GPU-1) is reset, and no GPU outside of this plan: the GPUs that a bridge joins it with are unknown (not supported): 'nvidia-smi nvlink --status' may list them; they must be idle too; no fabric manager runs",
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
			use := plannertest.NoUsage()
			use.GPU = func(id gpu.UUID) []string {
				if l := c.use[id]; l != "" {
					return []string{l}
				}
				return nil
			}
			use.OpenDevices.GPUs = map[gpu.UUID][]int{}
			for id := range c.use {
				use.OpenDevices.GPUs[id] = []int{42}
			}
			f := readFabric(t.Context(), root, c.reset, func(_ context.Context, id gpu.UUID) (gpu.NVLinks, error) {
				l, ok := c.links[id]
				if !ok {
					return l, gpu.ErrNotSupported
				}
				return l, nil
			})
			if diff := cmp.Diff(c.want, f.ResetWarnings(c.reset, node, use)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
