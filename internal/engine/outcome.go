package engine

import "time"

// State says how a change ended on one GPU.
type State string

// The states, from the best to the worst.
const (
	Reached     State = "reached"     // it is as the change wanted
	Undone      State = "undone"      // a step failed, and it is as it was before
	Interrupted State = "interrupted" // the engine was told to stop: the record must stay open
	Held        State = "held"        // a step failed and could not be taken back: neither old nor new
)

// severity orders the states.
var severity = map[State]int{Reached: 0, Undone: 1, Interrupted: 2, Held: 3}

// Result is how it ended on one GPU, or on the node.
type Result struct {
	State  State
	Reason string // empty when reached
	Step   int    // the step that failed, -1 when none did
	// Dropped counts the steps that were left out because the hardware that they were about is gone. The GPU then is
	// what it is: plan for it anew.
	Dropped int
}

// Outcome is how a change ended, by GPU; the empty name is the node. Lanes without a step are absent.
type Outcome map[string]Result

// State is the worst of all lanes.
func (o Outcome) State() State {
	worst := Reached
	for _, l := range o {
		if severity[l.State] > severity[worst] {
			worst = l.State
		}
	}
	return worst
}

// StepState says how far a step is.
type StepState string

// The states of a step.
const (
	Doing      StepState = "doing"
	Done       StepState = "done"
	Failed     StepState = "failed"
	Undoing    StepState = "undoing"
	StepUndone StepState = "undone"
)

// Progress is told when a step changes its state.
type Progress struct {
	Step     int
	GPU      string
	State    StepState
	At       time.Time
	Duration time.Duration // of Done, Failed and Back
	// Skipped: nothing was done, because the hardware already was as the step leaves it.
	Skipped bool
	Err     error // of Failed
}
