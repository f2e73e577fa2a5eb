package cli

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

func TestProgressLines(t *testing.T) {
	names := gpuNames{byUUID: map[string]string{"GPU-a": "GPU 0", "GPU-b": "GPU 1"}, width: 5}
	step := func(gpu, text, state string, estimate float64) api.PlanStep {
		return api.PlanStep{GPU: gpu, Text: text, State: state, EstimatedSeconds: estimate}
	}
	for _, c := range []struct {
		name  string
		steps []api.PlanStep
		want  []string
	}{
		{"nothing is under way", []api.PlanStep{step("GPU-a", "create 1g.5gb at 0", "pending", 2)}, nil},
		{
			"two side by side",
			[]api.PlanStep{
				step("GPU-a", "destroy 3g.20gb at 0", "done", 3), step("GPU-a", "create 1g.5gb at 0", "doing", 2), step("GPU-a", "create 1g.5gb at 1", "pending", 2),
				step("GPU-b", "turn on MIG mode", "doing", 0),
			},
			[]string{"  GPU 0  create 1g.5gb at 0 … step 2 of 3, about 4 s left", "  GPU 1  turn on MIG mode … step 1 of 1"},
		},
		{
			"it is taken back",
			[]api.PlanStep{step("GPU-a", "destroy 3g.20gb at 0", "undoing", 3), step("GPU-a", "create 1g.5gb at 0", "failed", 2)},
			[]string{"  GPU 0  undoing: destroy 3g.20gb at 0"},
		},
		{"the host", []api.PlanStep{step("", "set the slice of red", "doing", 0), step("GPU-a", "create 1g.5gb at 0", "pending", 2)}, []string{"  host   set the slice of red … step 1 of 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, progressLines(c.steps, names)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The lines are removed before other output, and a pipe gets none.
func TestProgressIsReplaced(t *testing.T) {
	var out bytes.Buffer
	p := progress{out: &out, names: gpuNames{byUUID: map[string]string{"GPU-a": "GPU 0"}, width: 5}}
	op := &api.Operation{Plan: api.Plan{Steps: []api.PlanStep{{GPU: "GPU-a", Text: "create 1g.5gb at 0", State: "doing"}}}}
	p.show(op)
	p.clear()
	p.clear()
	if got, want := out.String(), "  GPU 0  create 1g.5gb at 0 … step 1 of 1\n\x1b[1A\x1b[2K"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
	out.Reset()
	p.off = true
	p.show(op)
	if out.Len() != 0 {
		t.Errorf("a pipe got %q", out.String())
	}
}
