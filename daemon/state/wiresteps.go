package state

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/step"
)

// WireSteps are steps in the form of the API.
func WireSteps(steps []step.Step) []api.PlanStep {
	out := make([]api.PlanStep, len(steps))
	for i, s := range steps {
		out[i] = api.PlanStep{
			ID:           s.ID,
			Kind:         s.Kind,
			GPU:          s.GPU,
			Text:         s.Text,
			Reason:       s.Reason,
			Disruption:   string(s.Disruption),
			Disturbs:     step.Texts(s.Disturbs),
			Irreversible: s.Irreversible,
		}
	}
	return out
}
