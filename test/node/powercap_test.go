package node

import (
	"testing"

	"github.com/gpushare/gpushare/gpusim/server"
)

// A power limit that another tool set is corrected by the next pass, although the range of the limit was read a short time ago.
func TestPowerCapOfAnotherToolIsCorrected(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, "version: v1\nnode: {enforce: on}\ngpus: [{select: {index: 2}, mode: exclusive, health: {power_cap: 300W}}]\n")
	limit := func() uint64 {
		t.Helper()
		var s server.Status
		if err := n.Ctl(soon(t), &s, "status"); err != nil {
			t.Fatal(err)
		}
		return s.GPUs[2].Health.Power.Limit
	}
	if got := limit(); got != 300_000 {
		t.Fatalf("the cap is %d mW", got)
	}
	if err := n.Ctl(soon(t), nil, "sensor", "2", "power-limit", "250"); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "config", "reload"); r.Code != 0 { // It observes and corrects once before it answers.
		t.Fatal(r)
	}
	if got := limit(); got != 300_000 {
		t.Errorf("after a pass the limit is %d mW", got)
	}
}
