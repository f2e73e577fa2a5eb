package gpusim_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
)

// TestNVLinks has the GPUs of the node at 0000:01:00.0 and the following addresses.
func TestNVLinks(t *testing.T) {
	for _, c := range []struct {
		name     string
		models   string
		bridges  [][]int
		switches int
		want     []gpu.NVLinks
	}{
		{name: "no bridge", models: "A100-SXM4-40GB A30-24GB RTX-PRO-6000-96GB", want: []gpu.NVLinks{{Down: 12}, {Down: 4}, {}}},
		{
			name: "a pair and a single GPU", models: "A30-24GB A30-24GB A30-24GB", bridges: [][]int{{0, 2}},
			want: []gpu.NVLinks{{Peers: []string{"0000:03:00.0"}}, {Down: 4}, {Peers: []string{"0000:01:00.0"}}},
		},
		{
			name: "all connected, two of them twice", models: "A30-24GB A30-24GB A30-24GB", bridges: [][]int{{2, 1, 0}, {0, 1}},
			want: []gpu.NVLinks{
				{Peers: []string{"0000:02:00.0", "0000:03:00.0"}}, {Peers: []string{"0000:01:00.0", "0000:03:00.0"}}, {Peers: []string{"0000:01:00.0", "0000:02:00.0"}},
			},
		},
		{name: "switches", models: "H100-SXM5-80GB RTX-PRO-6000-96GB", switches: 4, want: []gpu.NVLinks{{Switches: 18}, {}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t, func(cfg *gpusim.Config) { cfg.Bridges, cfg.Switches = c.bridges, c.switches }, strings.Fields(c.models)...)
			d, ids := port(t, n)
			var got []gpu.NVLinks
			for _, id := range ids {
				l, err := d.NVLinks(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, l)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestInvalidLinks(t *testing.T) {
	for name, c := range map[string]struct {
		bridges  [][]int
		switches int
		says     string
	}{
		"a bridge with one GPU":   {bridges: [][]int{{0}}, says: "does not connect two"},
		"no such GPU":             {bridges: [][]int{{0, 3}}, says: "does not exist"},
		"one below":               {bridges: [][]int{{-1, 0}}, says: "does not exist"},
		"twice the same":          {bridges: [][]int{{0, 1}, {1, 1}}, says: "GPU 1 twice"},
		"a board without NVLinks": {bridges: [][]int{{0, 2}}, says: "RTX PRO 6000"},
		"more than on any board":  {switches: 7, says: "not 7"},
		"fewer than none":         {switches: -1, says: "not -1"},
	} {
		cfg := gpusim.Config{Bridges: c.bridges, Switches: c.switches}
		for _, m := range []string{"A30-24GB", "A30-24GB", "RTX-PRO-6000-96GB"} {
			cfg.GPUs = append(cfg.GPUs, gpusim.GPUConfig{Model: model(t, m)})
		}
		if _, err := gpusim.New(cfg, engine.SystemClock{}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q in it", name, err, c.says)
		}
	}
}
