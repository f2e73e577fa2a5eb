package api

import "time"

// Sensors is what changes within a second on one GPU, when it was last read. What its driver or its board does not report is absent.
// A request with sensors=true reads it first, if it is older than a second; else it is that of the last 10 seconds.
type Sensors struct {
	ReadAt            time.Time `json:"read_at"`
	Temperature       *int      `json:"temperature,omitempty"`        // °C
	MemoryTemperature *int      `json:"memory_temperature,omitempty"` // °C
	PowerWatts        *float64  `json:"power_watts,omitempty"`        // that it draws
	// PowerLimitWatts is the lowest of all limits of its power: the power_cap of the spec, unless its server has a lower one.
	PowerLimitWatts *float64 `json:"power_limit_watts,omitempty"`
	// Throttle are the reasons why its clocks are lowered now: none if it is empty, not known if it is null.
	Throttle   []string `json:"throttle"`
	Clocks     *Clocks  `json:"clocks,omitempty"`
	FanPercent *int     `json:"fan_percent,omitempty"` // of its greatest speed
}

// Clocks are in MHz; one that is not reported is absent.
type Clocks struct {
	SM     uint32 `json:"sm_mhz,omitempty"`
	MaxSM  uint32 `json:"max_sm_mhz,omitempty"` // that the board can have
	Memory uint32 `json:"memory_mhz,omitempty"`
}
