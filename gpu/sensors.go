package gpu

// Sensors is one reading of what changes within a second. A nil field is one that the driver or the board does not report: boards
// that are cooled by the server have no fan, and some boards do not measure their power.
type Sensors struct {
	Temperature       *int `json:"temperature,omitempty"`        // of the GPU, °C
	MemoryTemperature *int `json:"memory_temperature,omitempty"` // °C
	// PowerUsage is in milliwatts: the mean of the last second from Ampere on, except on GA100, else the draw of that moment (nvml.h,
	// nvmlDeviceGetPowerUsage).
	PowerUsage *uint64 `json:"power_usage,omitempty"`
	// PowerLimit is the lowest of all limits of power, in milliwatts: that which the driver enforces (nvmlDeviceGetEnforcedPowerLimit).
	// It is that of Health, which is set, unless another one is lower, as one of the server.
	PowerLimit *uint64 `json:"power_limit,omitempty"`
	// Throttle is that of Health: empty, not nil, when there are no reasons.
	Throttle []string `json:"throttle"`
	Clocks   *Clocks  `json:"clocks,omitempty"`
	Fan      *int     `json:"fan,omitempty"` // percent of its greatest speed
}

// Clocks are in MHz. The driver reports those of the GPU also in MIG mode; 0 is one that it does not report.
type Clocks struct {
	SM     uint32 `json:"sm,omitempty"`
	MaxSM  uint32 `json:"max_sm,omitempty"` // that the board can have
	Memory uint32 `json:"memory,omitempty"`
}
