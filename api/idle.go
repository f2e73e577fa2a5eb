package api

import "time"

// Idle answers GET /v1/idle: who holds GPU memory, and for how long it was not used. The longest idle time comes first, then what is
// in use, then what is not measured.
type Idle struct {
	SchemaVersion int       `json:"schema_version"` // 1
	At            time.Time `json:"at"`
	Uses          []IdleUse `json:"uses"`
}

// Whether the memory is used.
const (
	UseIdle    = "idle"
	UseBusy    = "busy"
	UseUnknown = "unknown" // that is not measured: it is not idle, as far as anybody knows
)

// IdleUse is a lease on one GPU, or the processes of one user that use one GPU outside of leases.
type IdleUse struct {
	GPU    string `json:"gpu"`   // UUID
	Index  int    `json:"index"` // of the GPU; -1: it has none now
	Lease  string `json:"lease,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Grant  string `json:"grant,omitempty"`
	User   string `json:"user"`
	PIDs   []int  `json:"pids,omitempty"` // outside of leases
	// Job and Account are what an engine gave the lease.
	Job     string `json:"job,omitempty"`
	Account string `json:"account,omitempty"`
	// Held is the GPU memory that others do not get for it, in bytes: the GPU, the instance, the limit of the grant, or what is used.
	Held  uint64  `json:"held"`
	Used  *uint64 `json:"used,omitempty"` // by its processes, in bytes; absent: not known
	State string  `json:"state"`          // idle | busy | unknown
	// IdleSeconds is for how long it was seen idle, up to now, and IdleSince when that began at the latest; absent if State is unknown.
	// Time that was not measured does not count.
	IdleSeconds *float64   `json:"idle_seconds,omitempty"`
	IdleSince   *time.Time `json:"idle_since,omitempty"` // absent while it is busy
	Reason      string     `json:"reason,omitempty"`     // why State is unknown
	Stop        string     `json:"stop,omitempty"`       // the command that ends it; absent outside of leases
}
