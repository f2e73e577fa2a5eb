package api

import "time"

// AuditLine is one line of GET /v1/audit: a change of the node, or an attempt.
type AuditLine struct {
	Number     uint64    `json:"number,omitempty"` // in the chain, without gaps; absent in lines of a version without a chain
	At         time.Time `json:"at"`
	By         string    `json:"by"`                   // the user, or gpushared
	UID        int       `json:"uid"`                  // -1: the daemon; -2: several users
	PID        int       `json:"pid,omitempty"`        // of the caller
	LoginUID   *uint32   `json:"login_uid,omitempty"`  // of the caller: who logged in, as the kernel's audit has it; absent if not set
	Session    *uint32   `json:"session,omitempty"`    // of that login, as the kernel's audit has it
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
	Incomplete    uint64 `json:"incomplete"`     // lines that a kill or a power cut left without their end; no attack
	Older         uint64 `json:"older"`          // lines of a version without a chain
	// Broken is the first finding; absent if there is none.
	Broken *BrokenLine `json:"broken,omitempty"`
	// Findings are all places that are not as they were written, the oldest first, at most 100.
	Findings     []AuditFinding `json:"findings,omitempty"`
	MoreFindings uint64         `json:"more_findings,omitempty"` // that are not in the list
	// Anchored: the newest line is known outside of the files, so that a removed end is found.
	Anchored bool `json:"anchored"`
	// AnchoredSince is the newest line when that began: of the lines up to it, some may have been removed at the begin before. Absent:
	// none can.
	AnchoredSince uint64 `json:"anchored_since,omitempty"`
}

// BrokenLine is where the chain is broken.
type BrokenLine struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // from 1
	Message string `json:"message"`
}

// AuditFinding is one place where the audit is not as it was written.
type AuditFinding struct {
	File string `json:"file,omitempty"` // absent: no file that is there
	Line int    `json:"line,omitempty"` // from 1; absent: the whole file
	// First and Last are the numbers of the lines that are missing or changed; absent: none is.
	First uint64 `json:"first,omitempty"`
	Last  uint64 `json:"last,omitempty"`
	// After and Before are when the lines around them were written; absent: there is no such line.
	After   time.Time `json:"after,omitzero"`
	Before  time.Time `json:"before,omitzero"`
	Message string    `json:"message"`
	// PowerLoss: the lines may have been lost when the host lost its power, before they were on the disk.
	PowerLoss bool `json:"power_loss,omitempty"`
}
