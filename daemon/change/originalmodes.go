package change

import (
	"encoding/json"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// recordFound records the original modes of the GPUs whose modes these steps change: once, before the first change.
func recordFound(s *store.State, steps []step.Step) {
	for i := range steps {
		st := &steps[i]
		f := s.OriginalModes[gpu.UUID(st.GPU)]
		switch st.Kind {
		case mig.KindMode:
			var was mig.ModeArgs
			if json.Unmarshal(st.Undo, &was) != nil || f.MIG != nil {
				continue
			}
			f.MIG = &was.On
		case planner.KindComputeMode:
			var was planner.ComputeModeArgs
			if json.Unmarshal(st.Undo, &was) != nil || f.ComputeMode != "" {
				continue
			}
			f.ComputeMode = was.Mode
		default:
			continue
		}
		if s.OriginalModes == nil {
			s.OriginalModes = map[gpu.UUID]store.GPUModes{}
		}
		s.OriginalModes[gpu.UUID(st.GPU)] = f
	}
}
