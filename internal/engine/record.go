package engine

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// Record is one change on its way. It is on disk, whole, before the first step and until the last.
type Record struct {
	ID         string      `json:"id"`
	Kind       string      `json:"kind"` // apply | retry | dynamic | …
	By         string      `json:"by"`
	Authority  Authority   `json:"authority"`
	Generation uint64      `json:"generation"` // of the spec that it leads to
	Started    time.Time   `json:"started"`
	Epoch      store.Epoch `json:"epoch"` // in which it was planned
	Steps      []step.Step `json:"steps"`
}

// Authority is what whoever asked for the change may do to others. Only a change has any.
type Authority struct {
	Force      bool `json:"force,omitempty"`       // stop who is in the way
	AllowReset bool `json:"allow_reset,omitempty"` // reset GPUs that need it
}

// check refuses a record that must not be carried out. All of these are our own mistakes.
func (e *Engine) check(r *Record) error {
	for i := range r.Steps {
		s := &r.Steps[i]
		if _, ok := e.Handlers[s.Kind]; !ok {
			return fmt.Errorf("internal error: step %d is of kind %q, which nobody carries out", s.ID, s.Kind)
		}
		if s.Disruption == step.Running && !r.Authority.Force && !r.Authority.AllowReset {
			return fmt.Errorf("internal error: step %d (%s) would stop somebody, and nobody gave the authority", s.ID, s.Text)
		}
	}
	return nil
}
