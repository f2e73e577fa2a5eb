package api

import "encoding/json"

// HostResults is what several hosts answered to one command of the command line, in the order in which they were named.
type HostResults struct {
	SchemaVersion int          `json:"schema_version"` // 1
	Hosts         []HostResult `json:"hosts"`
}

// HostResult is what one host answered.
type HostResult struct {
	Host string `json:"host"` // as it was named
	OK   bool   `json:"ok"`
	// Result is the answer as its version of gpushare gave it, with fields that this one does not know.
	Result json.RawMessage `json:"result,omitempty"` // with ok
	Error  *Error          `json:"error,omitempty"`  // otherwise
	// ExitCode is that of gpushare on the host, or of ssh; absent if there is none.
	ExitCode *int `json:"exit_code,omitempty"`
}
