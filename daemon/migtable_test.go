package daemon

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/scenarios"
)

// TestMIGTable carries out the table of docs/mig.md with the whole daemon, on virtual GPUs with slow calls. It counts the calls
// that reach the driver.
func TestMIGTable(t *testing.T) {
	a100, h100 := scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "h100-80", MIG: true}
	for _, c := range []struct {
		scenarios.Scenario
		created, destroyed, modes uint64
		refused                   string // a part of the reason
	}{
		{Scenario: scenarios.Scenario{Name: "one 3g present, want 3g + 1g", Boards: []scenarios.Board{a100}, From: []string{"3g.20gb"}, To: []string{"3g.20gb 1g.5gb"}}, created: 1},
		{Scenario: scenarios.Scenario{
			Name: "a busy 3g and three idle 1g, one more 1g", Boards: []scenarios.Board{a100},
			From: []string{"3g.20gb 1g.5gb 1g.5gb 1g.5gb"}, To: []string{"3g.20gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb"}, Busy: "3g.20gb",
		}, created: 1},
		{Scenario: scenarios.Scenario{
			Name: "4g + 3g + 1g over a good layout", Boards: []scenarios.Board{a100}, From: []string{"2g.10gb 1g.5gb 3g.20gb"}, To: []string{"4g.20gb 3g.20gb 1g.5gb"},
		}, refused: "they need 9 memory slices, this GPU has 8"},
		{Scenario: scenarios.Scenario{
			Name: "GPU 0 right, GPU 1 needs its mode", Boards: []scenarios.Board{h100, {Model: "h100-80"}}, From: []string{"3g.40gb 4g.40gb", "off"}, To: []string{"3g.40gb 4g.40gb", "7g.80gb"},
		}, modes: 1, created: 1},
		{Scenario: scenarios.Scenario{
			Name: "GPU 0 right, GPU 1 needs its mode by a reset", Boards: []scenarios.Board{a100, {Model: "a100-40"}}, From: []string{"3g.20gb 4g.20gb", "off"}, To: []string{"3g.20gb 4g.20gb", "7g.40gb"}, AllowReset: true,
		}, modes: 1, created: 1},
		{Scenario: scenarios.Scenario{Name: "seven 1g from empty", Boards: []scenarios.Board{a100}, From: []string{""}, To: []string{strings.Repeat("1g.5gb ", 7)}}, created: 7},
	} {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := (&scenario{Scenario: c.Scenario}).stage(t, map[string]time.Duration{
					"*":                2 * time.Millisecond,
					"*Create*":         time.Second,
					"*Destroy":         time.Second,
					"DeviceSetMigMode": 3 * time.Second,
				})
				zero, before := w.truth()[0], w.node.Counters()
				res, op, refusal := w.apply(c.SpecTo(), c.Query())
				switch {
				case c.refused != "" && (refusal == nil || refusal.Kind != api.KindInfeasible || !strings.Contains(refusal.Message, c.refused) || !strings.Contains(refusal.Message, "what fits is 4g.20gb, 3g.20gb")):
					t.Errorf("the answer is %v, want it refused because %s, and the nearest", refusal, c.refused)
				case c.refused == "" && (refusal != nil || op == nil || op.State != "done"):
					t.Errorf("it ends %+v, %v: %+v", op, refusal, res.Plan)
				}
				after := w.node.Counters()
				calls := func(name string) uint64 { return after.Calls[name] - before.Calls[name] }
				if n := calls("DeviceCreateGpuInstanceWithPlacement"); n != c.created {
					t.Errorf("%d were created, want %d", n, c.created)
				}
				if n := calls("GpuInstanceDestroy"); n != c.destroyed {
					t.Errorf("%d were destroyed, want %d", n, c.destroyed)
				}
				if n := calls("DeviceSetMigMode"); n != c.modes {
					t.Errorf("the mode was set %d times, want %d", n, c.modes)
				}
				for _, name := range writeCalls() {
					if n := after.Failures[name] - before.Failures[name]; n != 0 {
						t.Errorf("%s failed %d times", name, n)
					}
				}
				if g := w.truth()[0]; g.Resets != zero.Resets {
					t.Error("GPU 0 was reset")
				}
				w.processesKept(func(id, format string, args ...any) { t.Errorf(id+": "+format, args...) })
			})
		})
	}
}
