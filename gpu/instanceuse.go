package gpu

import "time"

// InstanceUse is how a GPU instance was used in one interval, by the counters of the GPU (GPM in nvml.h: GPU performance monitoring, on
// Hopper and newer). They are of the whole instance, whichever process or compute instance used it.
type InstanceUse struct {
	GI     uint32        `json:"gi"`
	Length time.Duration `json:"length"` // of the interval, which ended with this reading
	// Each is a percentage, and nil when the driver does not report it. Busy is the part of the time in which something ran
	// (NVML_GPM_METRIC_GRAPHICS_UTIL); SM the part of the multiprocessors that were busy (…_SM_UTIL); Memory the part of the bandwidth of
	// the memory (…_DRAM_BW_UTIL).
	Busy   *float64 `json:"busy,omitempty"`
	SM     *float64 `json:"sm,omitempty"`
	Memory *float64 `json:"memory,omitempty"`
}

// The bounds of the interval of InstanceUse. nvml.h: two samples should be more than 100 ms apart.
const (
	LeastUse = 150 * time.Millisecond
	MostUse  = 5 * time.Minute // older samples say nothing about now
)

// Percentage is a value that a driver reports as a percentage; nil if it is none. Counters that are read one after the other may give a
// little more than 100.
func Percentage(v float64) *float64 {
	if !(v >= 0 && v <= 101) { // also NaN
		return nil
	}
	return new(min(v, 100))
}
