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

// recentSteps is how many steps of a kind the mean is about of: a driver's update shows after so many.
const recentSteps = 8

// stepDuration is how long one step took.
type stepDuration struct {
	id      int
	seconds float64
}

// NoteDuration keeps how long a step took that did something. Progress is told by one lane at a time.
func (ch *OpenChange) NoteDuration(p *engine.Progress) {
	if p.State == engine.Done && !p.Skipped {
		ch.Durations = append(ch.Durations, stepDuration{p.Step, p.Duration.Seconds()})
	}
}

// NoteTimes adds what the steps of a change took to what is known of their kinds.
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

// modelOf is the model of the GPU that a step is about; empty for the host's.
func modelOf(node *observe.Node, id string) string {
	if g, ok := node.GPU(gpu.UUID(id)); ok {
		return g.Identity.Model
	}
	return ""
}

// estimate says how long the steps of a plan take by what is known of their kinds: those of the host one after the
// other, GPUs side by side. It says nothing of the whole where it knows nothing of a step that takes a GPU's time.
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

// Estimate adds to a plan how long it takes.
func (x *State) Estimate(node *observe.Node, p *api.Plan) {
	estimate(x.Stored().StepDurations, node, p)
}

// WireTimes lists what is known, by model and kind.
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
