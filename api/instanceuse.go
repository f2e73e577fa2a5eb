package api

import "time"

// InstanceUse is how a MIG instance was used in the last interval, as the GPU counts it. A percentage that the driver does not report is
// absent, never 0.
type InstanceUse struct {
	Busy            *float64  `json:"busy,omitempty"`             // percent of the time in which something ran
	Multiprocessors *float64  `json:"multiprocessors,omitempty"`  // percent of those of the instance that were busy
	MemoryBandwidth *float64  `json:"memory_bandwidth,omitempty"` // percent
	IntervalSeconds float64   `json:"interval_seconds"`
	ReadAt          time.Time `json:"read_at"` // the end of the interval
}
