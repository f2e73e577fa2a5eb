package change

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFailures(t *testing.T) {
	got := failures(engine.Outcome{
		"": {State: engine.Held, Reason: "of the node"}, "GPU-1": {State: engine.Reached}, "GPU-2": {State: engine.Undone, Reason: "why"}, "GPU-3": {State: engine.Held, Reason: "worse"},
	})
	want := map[gpu.UUID]string{"GPU-2": "why", "GPU-3": "worse"}
	if len(got) != len(want) || got["GPU-2"] != "why" || got["GPU-3"] != "worse" {
		t.Errorf("failures are %v, want %v", got, want)
	}
}

// The hint reports exactly which failed steps were undone.
func TestHintOfAnOutcome(t *testing.T) {
	const correct = "; correct the cause, then 'gpushare gpu retry GPU' or apply again"
	node := &observe.Node{GPUs: []observe.GPU{observetest.Device(true)}}
	for _, c := range []struct {
		name string
		out  engine.Outcome
		want string
	}{
		{"undone", engine.Outcome{"": {State: engine.Reached}, "GPU-1": {State: engine.Undone}, "GPU-2": {State: engine.Reached}}, "failed steps were undone" + correct},
		{"not begun", engine.Outcome{"": {State: engine.Undone}, "GPU-1": {State: engine.Undone}}, "failed steps were undone" + correct},
		{"not undone", engine.Outcome{"GPU-1": {State: engine.Held}}, "GPU 1 could not be restored: it has neither the former nor the desired state" + correct},
		{"both", engine.Outcome{"GPU-1": {State: engine.Held}, "GPU-2": {State: engine.Undone}}, "failed steps were undone, but GPU 1 could not be restored: it has neither the former nor the desired state" + correct},
		{"the last steps of the node", engine.Outcome{"": {State: engine.Held}, "GPU-1": {State: engine.Reached}}, "failed steps of the node were not undone" + correct},
		{"dropped", engine.Outcome{"GPU-1": {State: engine.Reached, Dropped: 2}}, "no step failed: the missing parts are retried; 'gpushare status' lists them"},
		{
			"a step says what helps", engine.Outcome{"": {State: engine.Undone, Err: fmt.Errorf("it is so: %w", &api.Error{Hint: "do this"})}, "GPU-1": {State: engine.Undone}},
			"failed steps were undone; do this, then 'gpushare gpu retry GPU' or apply again",
		},
	} {
		if got := hintOf(c.out, node); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// An open change lists the GPUs that it changes.
func TestOpen(t *testing.T) {
	cs := &Changes{State: state.NewState(nil, false)}
	cs.Open("apply-1", &engine.Record{Steps: []step.Step{{GPU: "GPU-1"}, {GPU: ""}}})
	if ch := cs.State.Changing(); ch.Operation != "apply-1" || len(ch.GPUs) != 1 || !ch.GPUs["GPU-1"] {
		t.Errorf("the open change is %+v", ch)
	}
}
