package change

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An open change lists the GPUs that it changes.
func TestOpen(t *testing.T) {
	cs := &Changes{State: state.NewState(nil, false)}
	cs.Open("apply-1", &engine.Record{Steps: []step.Step{{GPU: "GPU-1"}, {GPU: ""}}})
	if ch := cs.State.Changing(); ch.Operation != "apply-1" || len(ch.GPUs) != 1 || !ch.GPUs["GPU-1"] {
		t.Errorf("the open change is %+v", ch)
	}
}
