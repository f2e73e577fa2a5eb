package planner

import (
	"errors"
	"slices"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// A permission for some GPUs permits the reset of no other one.
func TestAPermissionIsForItsGPUs(t *testing.T) {
	var steps []step.Step
	for _, id := range []string{"GPU-a", "GPU-b"} {
		steps = append(steps, step.Step{Kind: mig.KindMode, GPU: id, Args: step.Must(mig.ModeArgs{On: true, Reset: true})})
	}
	for name, c := range map[string]struct {
		a    Authority
		want bool
	}{
		"for all":         {Authority{AllowReset: true}, true},
		"for both":        {Authority{AllowReset: true, Resets: []string{"GPU-b", "GPU-a"}}, true},
		"for one of them": {Authority{AllowReset: true, Resets: []string{"GPU-a"}}, false},
		"for another one": {Authority{AllowReset: true, Resets: []string{"GPU-c"}}, false},
		"without":         {Authority{Force: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := Admit(steps, c.a)
			e, _ := errors.AsType[*api.Error](err)
			if c.want != (err == nil) ||
				!c.want && (e == nil || e.Kind != api.KindNeedsPermission || !slices.Equal(e.Resets, []string{"GPU-a", "GPU-b"})) {
				t.Errorf("it is %v", err)
			}
		})
	}
}
