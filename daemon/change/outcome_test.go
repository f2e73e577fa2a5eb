package change

import (
	"fmt"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

func TestFailures(t *testing.T) {
	got := failures(engine.Outcome{
		"": {
			State:  engine.Held,
			Reason: "of the node",
		},
		"GPU-1": {State: engine.Reached},
		"GPU-2": {State: engine.Undone, Reason: "why"},
		"GPU-3": {State: engine.Held, Reason: "worse"},
	})
	want := map[gpu.UUID]string{"GPU-2": "why", "GPU-3": "worse"}
	if len(got) != len(want) || got["GPU-2"] != "why" || got["GPU-3"] != "worse" {
		t.Errorf("failures are %v, want %v", got, want)
	}
}

// The hint reports exactly which failed steps were undone.
func TestHintOfAnOutcome(t *testing.T) {
	const correct = "; correct the cause, then "
	retry := func(gpu string) string { return correct + "'gpushare gpu retry " + gpu + "' or apply again" }
	other := observetest.Device(true, observetest.Instance(9, 0))
	other.Identity.UUID, other.Identity.Index = "GPU-2", 2
	lost := observetest.Device(true)
	lost.Identity.UUID, lost.Identity.Index, lost.Err = "GPU-3", 3, gpu.ErrLost
	node := &observe.Node{GPUs: []observe.GPU{observetest.Device(true), other, lost}}
	instance := step.Must(mig.InstanceArgs{Placed: mig.Placed{Name: "3g.20gb", ProfileID: 9, Placement: gpu.Placement{Size: 4}, Slices: 3}})
	steps := func(id gpu.UUID, kind string) []step.Step {
		return []step.Step{{GPU: string(id), Kind: kind, Args: instance, Undo: instance}}
	}
	for _, c := range []struct {
		name  string
		out   engine.Outcome
		want  string
		steps []step.Step
	}{
		{name: "undone, and it is there again", out: engine.Outcome{"GPU-2": {State: engine.Undone}}, steps: steps("GPU-2", mig.KindDestroy), want: "failed steps were undone" + retry("2")},
		{name: "undone, and it is missing", out: engine.Outcome{"GPU-1": {State: engine.Undone}}, steps: steps("GPU-1", mig.KindDestroy), want: "failed steps were undone, but GPU 1 is not as before: 3g.20gb at 0 is missing" + retry("1")},
		{name: "undone, and it is left", out: engine.Outcome{"GPU-2": {State: engine.Undone}}, steps: steps("GPU-2", mig.KindCreate), want: "failed steps were undone, but GPU 2 is not as before: 3g.20gb at 0 is left" + retry("2")},
		{name: "undone, and not read back", out: engine.Outcome{"GPU-3": {State: engine.Undone}}, want: "failed steps were undone, but GPU 3 does not answer: what was undone is not known" + retry("3")},
		{name: "undone", out: engine.Outcome{"": {State: engine.Reached}, "GPU-1": {State: engine.Undone}, "GPU-2": {State: engine.Reached}}, want: "failed steps were undone" + retry("1")},
		{name: "not begun", out: engine.Outcome{"": {State: engine.Undone}, "GPU-1": {State: engine.Undone}}, want: "failed steps were undone" + retry("1")},
		{name: "not undone", out: engine.Outcome{"GPU-1": {State: engine.Held}}, want: "GPU 1 could not be restored: it has neither the former nor the desired state" + retry("1")},
		{name: "both", out: engine.Outcome{"GPU-1": {State: engine.Held}, "GPU-2": {State: engine.Undone}}, want: "failed steps were undone, but GPU 1 could not be restored: it has neither the former nor the desired state" + correct + "apply again"},
		{name: "the last steps of the node", out: engine.Outcome{"": {State: engine.Held}, "GPU-1": {State: engine.Reached}}, want: "failed steps of the node were not undone" + correct + "apply again"},
		{name: "only a boot helps", out: engine.Outcome{"": {State: engine.Reached}, "GPU-1": {State: engine.Deferred}}, want: planner.BootHint},
		{name: "only a boot helps one", out: engine.Outcome{"GPU-1": {State: engine.Deferred}, "GPU-2": {State: engine.Undone}}, want: "failed steps were undone" + retry("2") + "; of the others " + planner.BootHint},
		{name: "dropped", out: engine.Outcome{"GPU-1": {State: engine.Reached, Dropped: 2}}, want: "no step failed: the missing parts are retried; 'gpushare status' lists them"},
		{
			name: "a step says what helps", out: engine.Outcome{"": {State: engine.Undone, Err: fmt.Errorf("it is so: %w", &api.Error{Hint: "do this"})}, "GPU-1": {State: engine.Undone}},
			want: "failed steps were undone; do this, then 'gpushare gpu retry 1' or apply again",
		},
	} {
		if got := outcomeHint(c.out, node, c.steps); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
