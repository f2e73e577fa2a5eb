package api

import "time"

// AuditLine is one line of GET /v1/audit: a change of the node, or an attempt.
type AuditLine struct {
	Number     uint64    `json:"number,omitempty"` // in the chain, without gaps; absent in lines of a version without a chain
	At         time.Time `json:"at"`
	By         string    `json:"by"`                   // the user, or gpushared
	UID        int       `json:"uid"`                  // -1: the daemon; -2: several users
	PID        int       `json:"pid,omitempty"`        // of the caller
	Role       string    `json:"role,omitempty"`       // of the caller
	What       string    `json:"what"`                 // apply, start, stop, attach, release, retry, …; errors: counted refusals
	Kind       Kind      `json:"kind,omitempty"`       // of the refusal; absent if it was done
	Count      uint64    `json:"count,omitempty"`      // of the requests that this line stands for; absent: one
	Generation uint64    `json:"generation,omitempty"` // of the spec in force afterwards
	GPU        string    `json:"gpu,omitempty"`
	Tenant     string    `json:"tenant,omitempty"`
	Lease      string    `json:"lease,omitempty"`
	Message    string    `json:"message,omitempty"`
	Command    string    `json:"command,omitempty"` // of a lease that started, with its arguments
	Lost       uint64    `json:"lost,omitempty"`    // entries before it that could not be written
}

// AuditVerification answers GET /v1/audit/verify.
type AuditVerification struct {
	SchemaVersion int    `json:"schema_version"` // 1
	Entries       uint64 `json:"entries"`        // in the chain
	First         uint64 `json:"first"`          // the number of the oldest; older ones were removed with their files
	Last          uint64 `json:"last"`           // the number of the newest
	SHA256        string `json:"sha256"`         // of the newest line: kept elsewhere, it shows whether the chain was written again
	Lost          uint64 `json:"lost"`           // entries that could not be written
	Incomplete    uint64 `json:"incomplete"`     // lines that a kill or a power cut left incomplete; no attack
	Older         uint64 `json:"older"`          // lines of a version without a chain
	// Broken is the first line that was changed, removed or added; absent if every line follows the one before it.
	Broken *BrokenLine `json:"broken,omitempty"`
}

// BrokenLine is where the chain is broken.
type BrokenLine struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // from 1
	Message string `json:"message"`
}
