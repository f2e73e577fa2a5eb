package node

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/harness"
)

// checkRollback changes the layout of a node on which small is in force, and goes back: first as a plan, then for the instances too.
func checkRollback(t *testing.T, n *harness.Node) {
	t.Helper()
	changed := replaced(t, small, "[3g.20gb, 1g.5gb]", "[3g.20gb, 2g.10gb]")
	apply(t, n, replaced(t, changed, "share: 30%", "share: 20%"))
	r := n.CLI(soon(t), "history")
	if want := "tenants.red.grants.part.timeslice.share: 30% → 20%"; r.Code != 0 || !strings.Contains(r.Out, want) ||
		!strings.Contains(r.Out, "gpus.0.mig.layout: + 2g.10gb, - 1g.5gb") {
		t.Errorf("history exited with %d and has no %q:\n%s%s", r.Code, want, r.Out, r.Err)
	}
	before := writes(t, n)
	if r := n.CLI(soon(t), "rollback", "--dry-run"); r.Code != 0 || !strings.Contains(r.Out, "1g.5gb") || writes(t, n) != before {
		t.Errorf("rollback --dry-run exited with %d after %d writes:\n%s%s", r.Code, writes(t, n)-before, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "rollback"); r.Code != 0 || !strings.Contains(r.Out, "done: generation 3 is in force") {
		t.Errorf("rollback exited with %d:\n%s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLIIn(soon(t), small, "plan", "-f", "-", "--exit-code"); r.Code != 0 {
		t.Errorf("after the rollback the first spec still has a plan: %s%s", r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "mig", "list"); !strings.Contains(r.Out, "1g.5gb") || strings.Contains(r.Out, "2g.10gb") {
		t.Errorf("the instances are not those of the first spec:\n%s", r.Out)
	}
	if r := n.CLI(soon(t), "audit"); !strings.Contains(r.Out, "back to generation 1") {
		t.Errorf("the audit has no rollback:\n%s%s", r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "rollback", "2", "--if-generation", "1"); r.Code != 5 {
		t.Errorf("a rollback of another generation than the one in force exited with %d: %s", r.Code, r.Err)
	}
}
