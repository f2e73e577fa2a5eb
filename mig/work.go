package mig

import (
	"context"
	"fmt"
)

// The limits of the work for one GPU, in steps of the search. On the built-in boards no plan and no nearest layout needs a
// tenth of them (TestPlanIsBounded): they are for grids that are not known yet.
const (
	searchSteps  = 50_000
	nearestSteps = 30_000
)

// stepsPerCheck is how often the search asks whether its caller still waits: many times a second.
const stepsPerCheck = 1024

// work counts the steps of a search, so that it ends.
type work struct {
	steps, limit int
	done         <-chan struct{}
	cancelled    bool
}

func newWork(limit int, o Options) *work { return &work{limit: limit, done: o.Done} }

// step counts one step. It reports whether the search may continue.
func (w *work) step() bool {
	if w.over() {
		return false
	}
	w.steps++
	if w.steps%stepsPerCheck == 1 {
		select {
		case <-w.done:
			w.cancelled = true
		default:
		}
	}
	return true
}

// over reports whether the search has to end without its answer.
func (w *work) over() bool { return w.cancelled || w.steps >= w.limit }

// err is the error of a search that had to end.
func (w *work) err() error {
	if w.cancelled {
		return fmt.Errorf("cannot plan MIG instances: %w", context.Canceled)
	}
	return &TooComplex{Steps: w.steps}
}

// TooComplex is the error for requests whose search was stopped. They may be feasible.
type TooComplex struct{ Steps int }

// Error names the limit.
func (e *TooComplex) Error() string {
	return fmt.Sprintf("cannot plan MIG instances: stopped looking for a plan after %d steps; request fewer different instances", e.Steps)
}
