package engine

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// Record is one change under way. It is on disk, complete, from before the first step until after the last.
type Record struct {
	ID         string      `json:"id"`
	Kind       string      `json:"kind"` // apply | retry | dynamic | …
	By         string      `json:"by"`
	Authority  Authority   `json:"authority"`
	Generation uint64      `json:"generation"` // of the spec that it carries out
	Started    time.Time   `json:"started"`
	Epoch      store.Epoch `json:"epoch"` // in which it was planned
	Steps      []step.Step `json:"steps"`
}

// Authority is what the caller allowed the change to do to running processes. Only a change has authority.
type Authority struct {
	Force      bool `json:"force,omitempty"`       // stop processes that use the GPUs
	AllowReset bool `json:"allow_reset,omitempty"` // reset GPUs that need it
}

// check refuses a record that must not be carried out. All of these are programming errors.
func (e *Engine) check(r *Record) error {
	for i := range r.Steps {
		s := &r.Steps[i]
		if _, ok := e.Handlers[s.Kind]; !ok {
			return fmt.Errorf("internal error: step %d is of kind %q, which has no handler", s.ID, s.Kind)
		}
		if s.Disruption == step.Running && !r.Authority.Force && !r.Authority.AllowReset {
			return fmt.Errorf("internal error: step %d (%s) would stop processes, and the change has no authority", s.ID, s.Text)
		}
	}
	return nil
}
