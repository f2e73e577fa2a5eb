package ledger

import "time"

// Audit is one entry of the audit ledger: a change of the node, or an attempt.
type Audit struct {
	At         time.Time `json:"at"`
	By         string    `json:"by"`                   // the user's name, or the daemon itself
	UID        int       `json:"uid"`                  // -1: the daemon itself
	PID        int       `json:"pid,omitempty"`        // of the caller
	What       string    `json:"what"`                 // "apply", "run", "unmanage", "retry", "rollback", …
	Kind       string    `json:"kind,omitempty"`       // the kind of refusal; empty when it was done
	Generation uint64    `json:"generation,omitempty"` // of the resulting spec
	GPU        string    `json:"gpu,omitempty"`
	Tenant     string    `json:"tenant,omitempty"`
	Lease      string    `json:"lease,omitempty"`
	Text       string    `json:"text,omitempty"` // one sentence
}
