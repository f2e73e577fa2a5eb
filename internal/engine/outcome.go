package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// State is how a change ended on one GPU.
type State string

// The states, from the best to the worst.
const (
	Reached     State = "reached"     // as the change requested
	Deferred    State = "deferred"    // the hardware keeps a step until the next boot of the host; nothing was undone
	Undone      State = "undone"      // a step failed, and the GPU is as before
	Interrupted State = "interrupted" // the engine was stopped: the record must stay open
	Held        State = "held"        // a step failed and could not be undone: neither old nor new
)

// severity orders the states.
var severity = map[State]int{Reached: 0, Deferred: 1, Undone: 2, Interrupted: 3, Held: 4}

// Result is how a change ended on one GPU, or on the node.
type Result struct {
	State  State
	Reason string // empty when reached
	Err    error  // of the failed step, and of its undo; nil without one
	Step   int    // the failed step, -1 without one
	// Dropped counts the steps that were skipped because their hardware is of another epoch. The GPU must then be planned
	// again.
	Dropped int
}

// Unknown reports whether a step failed without an answer: what it did is not known, whatever is read now.
func (l Result) Unknown() bool {
	return l.Err != nil &&
		(gpu.IsAny(l.Err, gpu.ErrTimeout, gpu.ErrStuck) || errors.Is(l.Err, context.DeadlineExceeded) || errors.Is(l.Err, context.Canceled))
}

// Begun are the steps of a GPU that a run may have begun, by its result: those up to the one that failed, in their order.
func (l Result) Begun(steps []step.Step, id string) []step.Step {
	own := byGPU(steps)[id]
	return own[:slices.IndexFunc(own, func(s step.Step) bool { return s.ID == l.Step })+1]
}

// Outcome is how a change ended, by GPU; the empty name is the node. GPUs without a step are absent.
type Outcome map[string]Result

// State is the worst of all results.
func (o Outcome) State() State {
	worst := Reached
	for _, l := range o {
		if severity[l.State] > severity[worst] {
			worst = l.State
		}
	}
	return worst
}

// StepState is the state of a step.
type StepState string

// The states of a step.
const (
	Doing      StepState = "doing"
	Done       StepState = "done"
	Failed     StepState = "failed"
	Undoing    StepState = "undoing"
	StepUndone StepState = "undone"
)

// Progress reports that a step changed its state.
type Progress struct {
	Step     int
	GPU      string
	State    StepState
	At       time.Time
	Duration time.Duration // of Done, Failed and StepUndone
	// Skipped: nothing was done, because the step was done already.
	Skipped bool
	Err     error // of Failed
	// WaitsFor is what a step waits for that is being done; empty: it says nothing of that.
	WaitsFor string
}
