package node

import (
	"context"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/test/harness"
)

// A power limit that another tool set is corrected with the next observation. The deadline is below the time in which the range of the limit is
// read again.
func TestPowerCapOfAnotherToolIsCorrected(t *testing.T) {
	t.Parallel()
	n := newNode(t, quick)
	n.Settings = map[string]string{"converge_interval": "1s"}
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, "version: v1\nnode: {enforce: on}\ngpus: [{select: {index: 2}, mode: exclusive, health: {power_cap: 300W}}]\n")
	if err := n.Ctl(soon(t), nil, "sensor", "2", "power-limit", "250"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := harness.Await(ctx, 20*time.Millisecond, "the limit was not corrected", func() (bool, error) {
		var s server.Status
		err := n.Ctl(ctx, &s, "status")
		return err == nil && s.GPUs[2].Health.Power.Limit == 300_000, err
	})
	if err != nil {
		t.Error(err)
	}
}
