package state

import (
	"cmp"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// recentSteps is the approximate number of latest steps in the mean, so that it follows an update of the driver.
const recentSteps = 8

// stepDuration is the duration of one step.
type stepDuration struct {
	id      int
	seconds float64
}

// NoteDuration records the duration of a step that was carried out. Progress is reported by one goroutine at a time.
func (ch *OpenChange) NoteDuration(p *engine.Progress) {
	if p.State == engine.Done && !p.Skipped {
		ch.Durations = append(ch.Durations, stepDuration{p.Step, p.Duration.Seconds()})
	}
}

// NoteTimes adds the durations of the steps of a change to the means of their kinds.
func NoteTimes(s *store.State, node *observe.Node, steps []step.Step, durations []stepDuration) {
	for _, t := range durations {
		i := slices.IndexFunc(steps, func(st step.Step) bool { return st.ID == t.id })
		if i < 0 {
			continue
		}
		model := modelOf(node, steps[i].GPU)
		if s.StepDurations == nil {
			s.StepDurations = map[string]map[string]store.Duration{}
		}
		if s.StepDurations[model] == nil {
			s.StepDurations[model] = map[string]store.Duration{}
		}
		k := s.StepDurations[model][steps[i].Kind]
		k.Count++
		k.MeanSeconds += (t.seconds - k.MeanSeconds) / float64(min(k.Count, recentSteps))
		s.StepDurations[model][steps[i].Kind] = k
	}
}

// modelOf is the model of the GPU of a step; empty for steps of the host.
func modelOf(node *observe.Node, id string) string {
	if g, ok := node.GPU(gpu.UUID(id)); ok {
		return g.Identity.Model
	}
	return ""
}

// estimate computes the duration of a plan from the means of the step kinds: steps of the host one after the other, GPUs in
// parallel. Without a mean for a step of a GPU the plan has no estimate.
func estimate(times map[string]map[string]store.Duration, node *observe.Node, p *api.Plan) {
	host, slowest, known := 0.0, 0.0, true
	perGPU := map[string]float64{}
	for i := range p.Steps {
		s := &p.Steps[i]
		t, ok := times[modelOf(node, s.GPU)][s.Kind]
		s.EstimatedSeconds = t.MeanSeconds
		if s.GPU == "" {
			host += t.MeanSeconds
			continue
		}
		known = known && ok
		perGPU[s.GPU] += t.MeanSeconds
		slowest = max(slowest, perGPU[s.GPU])
	}
	if p.EstimatedSeconds = 0; known {
		p.EstimatedSeconds = host + slowest
	}
}

// Estimate adds the estimated duration to a plan.
func (x *State) Estimate(node *observe.Node, p *api.Plan) {
	estimate(x.Stored().StepDurations, node, p)
}

// WireTimes lists the means, by model and kind.
func WireTimes(times map[string]map[string]store.Duration) []api.StepTime {
	var out []api.StepTime
	for model, kinds := range times {
		for op, t := range kinds {
			out = append(out, api.StepTime{Model: model, Kind: op, Count: t.Count, MeanSeconds: t.MeanSeconds})
		}
	}
	slices.SortFunc(out, func(a, b api.StepTime) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Kind, b.Kind)) })
	return out
}
