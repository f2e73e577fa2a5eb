package node

import (
	"strings"
	"testing"
)

// The plan for a GPU of the node refuses what the daemon refuses without --force, for the same reason, and an arrangement of compute
// instances that is there is one that needs no change, whatever the driver reports of it.
func TestThePlanForAGPUSaysWhatNeedsForce(t *testing.T) {
	t.Parallel()
	n := start(t, replaced(t, anonymous, "DRIVER", "580"))
	apply(t, n, leftWith("mode: mig, mig: {layout: [1c.3g.20gb, 2c.3g.20gb]}"))
	plan := func(code int, says string, args ...string) {
		t.Helper()
		r := n.CLI(soon(t), append([]string{"mig", "plan", "--gpu", "0"}, args...)...)
		if r.Code != code || !strings.Contains(r.Out+r.Err, says) {
			t.Errorf("%v exits with %d, want %d and %q: %s%s", args, r.Code, code, says, r.Out, r.Err)
		}
	}
	plan(0, "No changes", "--want", "1c.3g.20gb,2c.3g.20gb")
	plan(7, "could not be created again", "--want", "7g.40gb")
	plan(0, "needs --force: it could not be created again", "--want", "7g.40gb", "--force")
	r := n.CLIIn(soon(t), leftWith("mode: mig, mig: {layout: [7g.40gb]}"), "apply", "-f", "-")
	if r.Code == 0 || !strings.Contains(r.Err, "could not be created again") {
		t.Errorf("an apply exits with %d: %s", r.Code, r.Err)
	}
}
