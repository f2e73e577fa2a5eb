// Package step defines Step: one change to the node as data, with its undo, its reason and what it disturbs.
//
// It carries nothing out: the engine does, with a handler for each kind.
package step

import "encoding/json"

// Phase orders the steps of one GPU: access is revoked, the hardware is changed and read back, access is granted from what
// is observed.
type Phase string

// The phases, in order.
const (
	RevokeAccess Phase = "revoke"
	Change       Phase = "change"
	GrantAccess  Phase = "grant"
)

// Disruption is what a step does to running processes.
type Disruption string

// The degrees of disruption.
const (
	None    Disruption = "none"    // no process notices
	Idle    Disruption = "idle"    // destroys or changes something that is not in use
	Running Disruption = "running" // stops processes: needs authority
)

// Step is one change. Args and Undo are of the kind's types and must decode again after a restart.
type Step struct {
	ID    int             `json:"id"`            // unique within its change, in order
	Kind  string          `json:"kind"`          // "mig.create", "slice.set", …; it selects the handler
	GPU   string          `json:"gpu,omitempty"` // the GPU's UUID; empty for a step of the node
	Phase Phase           `json:"phase"`
	Args  json.RawMessage `json:"args,omitempty"`
	Undo  json.RawMessage `json:"undo,omitempty"`
	// Irreversible is why it has no undo although it destroys something; empty: it has one, or needs none. It needs authority.
	Irreversible string `json:"irreversible,omitempty"`

	Text       string     `json:"text"`   // what it does, for people: "create 3g.20gb at 4"
	Reason     string     `json:"reason"` // why: "missing instance"
	Disruption Disruption `json:"disruption"`
	Disturbs   []Subject  `json:"disturbs,omitempty"`
}

// Must encodes the arguments of a step. Their types always encode.
func Must(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("internal error: step arguments do not encode: " + err.Error())
	}
	return b
}
