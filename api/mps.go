package api

import "time"

// MPSDetail answers GET /v1/mps/{id}.
type MPSDetail struct {
	SchemaVersion int    `json:"schema_version"` // 1
	GPU           string `json:"gpu"`            // UUID
	Index         int    `json:"index"`
	// Profile and Instance are of the MIG instance; absent for a whole GPU.
	Profile  string        `json:"profile,omitempty"`
	Instance *MIGPlacement `json:"instance,omitempty"`
	MPSStatus
	Retry      *time.Time      `json:"retry,omitempty"` // when it is started again; absent: it runs, or is started at once
	ClientList []ProcessStatus `json:"client_list"`
	Servers    []int           `json:"servers"` // pids
	Rules      []Rule          `json:"rules"`   // defaults as read back, then what each lease asks for
}

// MPSDrain is who drained the MPS of a GPU.
type MPSDrain struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// MPSDrainResult answers POST /v1/mps/{id}/drain and resume.
type MPSDrainResult struct {
	SchemaVersion int           `json:"schema_version"`     // 1
	GPU           string        `json:"gpu"`                // UUID
	Instance      *MIGPlacement `json:"instance,omitempty"` // absent for a whole GPU
	Drained       *MPSDrain     `json:"drained,omitempty"`
	Changed       bool          `json:"changed"`
	Leases        []string      `json:"leases"` // that run on
}

// MPSLog answers GET /v1/mps/{id}/log.
type MPSLog struct {
	SchemaVersion int      `json:"schema_version"` // 1
	GPU           string   `json:"gpu"`            // UUID
	Unit          string   `json:"unit"`
	Lines         []string `json:"lines"` // of the control daemon and its servers, the oldest first
}
