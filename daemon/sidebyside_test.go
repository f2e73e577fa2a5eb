package daemon

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
)

// TestSideBySide is the table of docs/mig.md carried out by the whole daemon, on virtual GPUs whose calls take their time.
// Counted are the calls that reach the driver.
func TestSideBySide(t *testing.T) {
	a100, h100 := board{"a100-40", true}, board{"h100-80", true}
	for _, c := range []struct {
		scenario
		created, destroyed, modes uint64
		refused                   string // a part of the reason
	}{
		{scenario: scenario{name: "one 3g present, want 3g + 1g", boards: []board{a100}, from: []string{"3g.20gb"}, to: []string{"3g.20gb 1g.5gb"}}, created: 1},
		{scenario: scenario{
			name: "a busy 3g and three idle 1g, one more 1g", boards: []board{a100},
			from: []string{"3g.20gb 1g.5gb 1g.5gb 1g.5gb"}, to: []string{"3g.20gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb"}, busy: "3g.20gb",
		}, created: 1},
		{scenario: scenario{
			name: "4g + 3g + 1g over a good layout", boards: []board{a100}, from: []string{"2g.10gb 1g.5gb 3g.20gb"}, to: []string{"4g.20gb 3g.20gb 1g.5gb"},
		}, refused: "they need 9 memory slices, this GPU has 8"},
		{scenario: scenario{
			name: "GPU 0 right, GPU 1 needs its mode", boards: []board{h100, {"h100-80", false}}, from: []string{"3g.40gb 4g.40gb", "off"}, to: []string{"3g.40gb 4g.40gb", "7g.80gb"},
		}, modes: 1, created: 1},
		{scenario: scenario{
			name: "GPU 0 right, GPU 1 needs its mode by a reset", boards: []board{a100, {"a100-40", false}}, from: []string{"3g.20gb 4g.20gb", "off"}, to: []string{"3g.20gb 4g.20gb", "7g.40gb"}, query: "?allow-reset=1",
		}, modes: 1, created: 1},
		{scenario: scenario{name: "seven 1g from empty", boards: []board{a100}, from: []string{""}, to: []string{strings.Repeat("1g.5gb ", 7)}}, created: 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := c.stage(t, map[string]time.Duration{"*": 2 * time.Millisecond, "*Create*": time.Second, "*Destroy": time.Second, "DeviceSetMigMode": 3 * time.Second})
				zero, before := w.truth()[0], w.node.Counters()
				res, op, refusal := w.apply(c.specTo(), c.query)
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
				w.nobodyDisturbed(func(id, format string, args ...any) { t.Errorf(id+": "+format, args...) })
			})
		})
	}
}
