package converge

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/lease"
)

const withoutReserved = `version: v1
node: {enforce: on}
gpus: [{select: {all: true}, mode: exclusive}]
tenants:
  - name: blue
    grants: [{name: any, exclusive: 1}]
`

const withReserved = withoutReserved + `  - name: red
    grants: [{name: kept, exclusive: 1, reserved: true}]
`

// A reserved grant whose place cannot be kept free is reported as long as that is so.
func TestUnmetReservedGrantIsReported(t *testing.T) {
	w := newFixture(t, withoutReserved)
	w.Observer.Observe(t.Context())
	node := &observe.Node{GPUs: []observe.GPU{observetest.Device(false)}}
	empty := &observe.Node{} // The GPU is missing.
	want := func(document string, generation uint64) {
		t.Helper()
		s, err := spec.Decode("node.yaml", []byte(document))
		if err != nil {
			t.Fatal(err)
		}
		s.Normalize()
		r, _, err := spec.Resolve(s, []gpu.Identity{node.GPUs[0].Identity})
		if err != nil {
			t.Fatal(err)
		}
		w.State.SetDesired(state.DesiredOf(s, r, generation))
	}
	sub, stop := w.Events.Subscribe()
	defer stop()
	refresh := func(name string, on *observe.Node, conditionCount int, event string) {
		t.Helper()
		w.Refresh(t.Context(), on)
		var conditions []api.Condition
		for _, c := range w.Conditions.List() {
			if c.Kind == "reserved" {
				conditions = append(conditions, c)
			}
		}
		if len(conditions) != conditionCount {
			t.Errorf("%s: %d conditions, want %d: %+v", name, len(conditions), conditionCount, conditions)
		}
		for _, c := range conditions {
			if c.Tenant != "red" || !strings.HasPrefix(c.Message, "red/kept: 1 of 1 reserved place cannot be kept free: ") || c.Hint == "" {
				t.Errorf("%s: the condition is %+v", name, c)
			}
		}
		var events []string
		for range len(sub.C) {
			if e := <-sub.C; strings.HasPrefix(e.Kind, "reserved.") {
				events = append(events, e.Kind)
				if e.Tenant != "red" || !strings.HasPrefix(e.Message, "red/kept: ") {
					t.Errorf("%s: the event is %+v", name, e)
				}
			}
		}
		if got := strings.Join(events, " "); got != event {
			t.Errorf("%s: events %q, want %q", name, got, event)
		}
	}

	want(withoutReserved, 1)
	refresh("nothing is reserved", node, 0, "")
	ticket, err := w.Table.Submit(
		lease.Request{Tenant: "blue", Member: []string{"blue"}, UID: 1001, User: "user", Command: []string{"command"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Table.Start(t.Context(), ticket.ID(), lease.Process{PID: 1 << 30, Start: 1}); err != nil {
		t.Fatal(err)
	}
	want(withReserved, 2)
	refresh("another lease has its place", node, 1, "reserved.unmet")
	refresh("still", node, 1, "")
	if err := w.Table.Ended(t.Context(), ticket.ID(), "a test"); err != nil {
		t.Fatal(err)
	}
	refresh("the other ended", node, 0, "reserved.kept")
	w.State.SetChanging(&state.OpenChange{Operation: "apply-1", GPUs: map[gpu.UUID]bool{observetest.One: true}})
	refresh("a change is under way", empty, 0, "")
	w.State.EndChange()
	refresh("it is over", node, 0, "")
	refresh("the GPU is missing", empty, 1, "reserved.unmet")
	refresh("it is back", node, 0, "reserved.kept")
	refresh("it is missing again", empty, 1, "reserved.unmet")
	want(withoutReserved, 3)
	refresh("nothing is reserved any more", empty, 0, "reserved.kept")
}
