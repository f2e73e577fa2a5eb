package ledger

import (
	"encoding/json"
	"time"
)

// Audit is one entry of the audit ledger: a change of the node, or an attempt.
type Audit struct {
	At         time.Time `json:"at"`
	By         string    `json:"by"`                   // the user's name, or the daemon itself
	UID        int       `json:"uid"`                  // -1: the daemon itself; -2: several users without a role
	PID        int       `json:"pid,omitempty"`        // of the caller
	LoginUID   *uint32   `json:"login_uid,omitempty"`  // of the caller, as the kernel's audit has it; nil: not set, or no kernel with it
	Session    *uint32   `json:"session,omitempty"`    // as above, the session
	Role       string    `json:"role,omitempty"`       // of the caller, in the words of the API
	What       string    `json:"what"`                 // "apply", "start", "unmanage", "retry", …; "errors" for counted refusals
	Kind       string    `json:"kind,omitempty"`       // the kind of refusal; empty when it was done
	Count      uint64    `json:"count,omitempty"`      // of the requests that this entry stands for; 0: one
	Generation uint64    `json:"generation,omitempty"` // of the spec in force afterwards
	GPU        string    `json:"gpu,omitempty"`
	Tenant     string    `json:"tenant,omitempty"`
	Lease      string    `json:"lease,omitempty"`
	Text       string    `json:"text,omitempty"` // one sentence
	// Command is that of a lease, with its arguments. The journal does not get it: more users may read that.
	Command string `json:"command,omitempty"`
}

// Audit decodes an entry of the audit ledger.
func (l *Line) Audit() (a Audit, ok bool) {
	err := json.Unmarshal(l.Entry, &a)
	return a, err == nil
}
