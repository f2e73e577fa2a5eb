package store

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Closure is why a place takes no lease, and who closed it. Package closing says what it means and changes the list.
type Closure struct {
	Where
	Kind   string    `json:"kind"` // one of the constants below
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"` // zero: until it is opened
	Reason string    `json:"reason,omitempty"`
}

// Where is the place of a closure.
type Where struct {
	GPU      gpu.UUID      `json:"gpu,omitempty"`     // empty: all of the node
	Instance gpu.Placement `json:"instance,omitzero"` // its size is 0 for the whole GPU
	Compute  gpu.UUID      `json:"compute,omitempty"` // the MIG device of one of the instance's several compute instances
	Tenant   string        `json:"tenant,omitempty"`  // that gets no lease there; empty: no tenant does
}

// The kinds of closures on disk. One kind closes a place once.
const (
	ClosureCordoned = "cordoned"
)
