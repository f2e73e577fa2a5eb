package power

import (
	"fmt"
	"strconv"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// KindLimit is the kind of step that sets a power limit.
const KindLimit = "gpu.power-limit"

// Args are the arguments, and the undo data, of such a step.
type Args struct {
	Limit uint64 `json:"limit"` // mW
	// Before is on disk while gpushare sets the limit; nil: gpushare sets none any more.
	Before *Before `json:"before,omitempty"`
}

// Before is the limit that a GPU had before gpushare set one.
type Before struct {
	Limit uint64 `json:"limit"` // mW
	// Epoch is the boot and the driver load in which it had it. The driver forgets limits at both: in a later epoch the GPU had
	// another one.
	Epoch string `json:"epoch"`
}

// Target is one GPU with the limit that it should have.
type Target struct {
	GPU   gpu.UUID
	Name  string // "GPU 0 (NVIDIA A100-SXM4-40GB)"
	Epoch string
	Cap   uint64 // mW; 0: gpushare sets none
	// Limit is the limit of the observation, in mW; nil where it does not have it.
	Limit *uint64
	Path  string // of its key in the spec
	Err   error  // the GPU does not answer
}

// Infeasible is why a GPU cannot have its cap, as far as the board is known.
type Infeasible struct{ Text, Hint string }

// Error returns the text.
func (e *Infeasible) Error() string { return e.Text }

// plan returns the step that brings one GPU to its limit, or nil. p is nil where the GPU does not report power. It is pure.
func plan(t *Target, p *gpu.Power, kept *Before) (*step.Step, error) {
	switch {
	case t.Cap == 0 && (kept == nil || p == nil):
		return nil, nil
	case p == nil:
		return nil, &Infeasible{t.Name + " does not report its power, so its limit cannot be set", "leave power_cap away for this GPU"}
	case t.Cap != 0 && (t.Cap < p.Min || t.Cap > p.Max):
		return nil, &Infeasible{
			fmt.Sprintf("%s is outside of what %s can have: %s to %s", watts(t.Cap), t.Name, watts(p.Min), watts(p.Max)),
			"write a value in this range",
		}
	case t.Cap != 0 && t.Cap == p.Limit:
		return nil, nil
	}
	if t.Cap == 0 {
		return restore(t, p, kept), nil
	}
	undo := Args{Limit: p.Limit}
	before := &Before{Limit: p.Limit, Epoch: t.Epoch}
	if kept != nil && kept.Epoch == t.Epoch {
		before, undo.Before = kept, kept
	}
	return limitStep(t, Args{t.Cap, before}, undo, fmt.Sprintf("power_cap is %s, and the limit is %s", watts(t.Cap), watts(p.Limit))), nil
}

// restore brings the limit from before back. In a later epoch it is in force already.
func restore(t *Target, p *gpu.Power, kept *Before) *step.Step {
	to := kept.Limit
	if kept.Epoch != t.Epoch {
		to = p.Limit
	}
	return limitStep(t, Args{Limit: to}, Args{Limit: p.Limit, Before: kept}, "no power_cap is for this GPU, and it had this limit before")
}

func limitStep(t *Target, to, undo Args, reason string) *step.Step {
	return &step.Step{
		Kind: KindLimit, GPU: string(t.GPU), Phase: step.Change, Args: step.Must(to), Undo: step.Must(undo),
		Text: "set the power limit to " + watts(to.Limit), Reason: reason, Disruption: step.None,
	}
}

// watts is a power in mW for people.
func watts(milliwatts uint64) string {
	return strconv.FormatFloat(float64(milliwatts)/1000, 'f', -1, 64) + " W"
}
