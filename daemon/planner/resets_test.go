package planner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

func TestResetsAreFoundInSteps(t *testing.T) {
	mode := func(id gpu.UUID, reset bool) step.Step {
		return step.Step{Kind: mig.KindMode, GPU: string(id), Args: step.Must(mig.ModeArgs{On: true, Reset: reset})}
	}
	steps := []step.Step{
		mode("GPU-2", true),
		mode("GPU-3", false),
		{Kind: KindComputeMode, GPU: "GPU-4", Args: step.Must(ComputeModeArgs{gpu.ComputeDefault})},
		mode(observetest.One, true),
	}
	if diff := cmp.Diff([]gpu.UUID{"GPU-2", observetest.One}, ResetsOf(steps)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
