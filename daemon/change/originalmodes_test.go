package change

import (
	"testing"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// The original modes of a GPU are recorded once, before the first change.
func TestNoteFound(t *testing.T) {
	s := &store.State{}
	mode := func(was bool) step.Step {
		return step.Step{Kind: mig.KindMode, GPU: string(observetest.One), Undo: step.Must(mig.ModeArgs{On: was})}
	}
	recordFound(s, []step.Step{{Kind: mig.KindCreate, GPU: "GPU-9"}, mode(false)})
	recordFound(s, []step.Step{
		mode(true),
		{
			Kind: planner.KindComputeMode,
			GPU:  string(observetest.One),
			Undo: step.Must(planner.ComputeModeArgs{Mode: gpu.ComputeProhibited}),
		},
	})
	recordFound(s, []step.Step{
		{
			Kind: planner.KindComputeMode,
			GPU:  string(observetest.One),
			Undo: step.Must(planner.ComputeModeArgs{Mode: gpu.ComputeDefault}),
		},
	})
	f := s.OriginalModes[observetest.One]
	if len(s.OriginalModes) != 1 || f.MIG == nil || *f.MIG || f.ComputeMode != gpu.ComputeProhibited {
		t.Errorf("found is %+v", s.OriginalModes)
	}
}
