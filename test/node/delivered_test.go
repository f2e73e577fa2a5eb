package node

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

// A board as delivered has MIG off on all GPUs. A spec with MIG is planned as a whole, the reset among the steps; without permission nothing
// is changed, and the exit code is one of its own. A spec that observes promises the same steps, and says what permission they need.
func TestBoardsAsDelivered(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, "dgx-a100.yaml")
	for _, g := range status(t, n).GPUs {
		if g.MIG != nil && (g.MIG.Enabled || len(g.MIG.Instances) > 0) {
			t.Fatalf("GPU %d is not as delivered: %+v", g.Index, g.MIG)
		}
	}
	spec := `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [0, 1]}, mode: mig, mig: {layout: [3g.20gb, 1g.5gb]}}
`
	steps := []string{
		"GPU 0  turn on MIG mode (resets the GPU)", "GPU 1  turn on MIG mode (resets the GPU)", "GPU 0  create 3g.20gb at 4",
		"GPU 1  create 1g.5gb at 0",
	}
	before := writes(t, n)
	for _, args := range [][]string{{"apply", "-f", "-"}, {"apply", "-f", "-", "--check"}, {"plan", "-f", "-", "--exit-code"}} {
		r := n.CLIIn(soon(t), spec, args...)
		if r.Code != api.ExitNeedsPermission || !strings.Contains(r.Err, "add --allow-reset") ||
			!strings.Contains(r.Err, "' lets the driver reset") || strings.Contains(r.Err, "never fit") {
			t.Errorf("%v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
		}
		for _, want := range steps {
			if !strings.Contains(r.Out, want) {
				t.Errorf("%v does not show %q:\n%s", args, want, r.Out)
			}
		}
	}
	if r := n.CLIIn(soon(t), spec, "apply", "-f", "-", "--json"); r.Code != api.ExitNeedsPermission ||
		!strings.Contains(r.Err, `"kind": "needs-permission"`) || !strings.Contains(r.Err, `"resets": [`) {
		t.Errorf("with --json it exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	observing := replaced(t, spec, "enforce: on", "enforce: observe")
	if r := n.CLIIn(soon(t), observing, "apply", "-f", "-"); r.Code != 0 ||
		!strings.Contains(r.Err, "with enforce: on this would need a permission: GPU 0 ") {
		t.Errorf("a spec that observes exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	r := n.CLI(soon(t), "plan")
	for _, want := range steps {
		if !strings.Contains(r.Out, want) {
			t.Errorf("the plan of a spec that observes does not show %q:\n%s%s", want, r.Out, r.Err)
		}
	}
	if now := writes(t, n); now != before {
		t.Errorf("%d writes without permission", now-before)
	}
	if r := n.CLIIn(soon(t), spec, "apply", "-f", "-", "--allow-reset"); r.Code != 0 {
		t.Fatalf("with --allow-reset it exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLIIn(soon(t), spec, "apply", "-f", "-"); r.Code != 0 || !strings.Contains(r.Out, "no changes") {
		t.Errorf("applied again without --allow-reset it exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}
