package api

import "time"

// GPUHealth is what is known of the trouble of one GPU.
type GPUHealth struct {
	State  string     `json:"state"`            // ok | warning | closed | testing
	Since  *time.Time `json:"since,omitempty"`  // of closed and testing: it takes no new lease
	Reason string     `json:"reason,omitempty"` // of a state other than ok
	// Readings are the last ones; absent before the first, and with a driver that gives none.
	Readings *HealthReadings `json:"readings,omitempty"`
}

// The states of the health of a GPU.
const (
	HealthOK      = "ok"
	HealthWarning = "warning" // it takes leases, and a condition says what was found
	HealthClosed  = "closed"  // it takes no new lease
	HealthTesting = "testing" // it was reset, and takes leases when its readings are good
)

// HealthReadings are values of sensors and counters of one GPU. What its driver or its board does not report is absent.
type HealthReadings struct {
	ReadAt              time.Time       `json:"read_at"`
	Temperature         *int            `json:"temperature,omitempty"` // °C
	MemoryTemperature   *int            `json:"memory_temperature,omitempty"`
	SlowdownTemperature *int            `json:"slowdown_temperature,omitempty"` // from which the hardware lowers its clocks
	Throttle            []string        `json:"throttle,omitempty"`             // why its clocks are lowered now
	CorrectedErrors     *uint64         `json:"corrected_errors,omitempty"`     // of memory, since the board was made
	UncorrectedErrors   *uint64         `json:"uncorrected_errors,omitempty"`
	Rows                *RemappedRows   `json:"rows,omitempty"`
	NVLinkErrors        *NVLinkCounters `json:"nvlink_errors,omitempty"` // since the driver was loaded
	PCIeReplays         *uint64         `json:"pcie_replays,omitempty"`  // since the driver was loaded
	Recovery            string          `json:"recovery,omitempty"`      // what the driver says that it needs: none | reset | reboot | drain-p2p | drain-and-reset | recover-imex | bus-reset
}

// RemappedRows are rows of GPU memory that were replaced by spare ones.
type RemappedRows struct {
	Corrected   uint32 `json:"corrected"`   // because of corrected errors
	Uncorrected uint32 `json:"uncorrected"` // because of uncorrected errors
	Pending     bool   `json:"pending"`     // a reset replaces more
	Failed      bool   `json:"failed"`      // one could not be replaced
	// FewLeft and NoneLeft count the banks of memory with few spare rows and with none; absent when unknown.
	FewLeft  *uint32 `json:"few_left,omitempty"`
	NoneLeft *uint32 `json:"none_left,omitempty"`
}

// NVLinkCounters are summed over the links of a GPU.
type NVLinkCounters struct {
	CRC      uint64 `json:"crc"`
	Replay   uint64 `json:"replay"`
	Recovery uint64 `json:"recovery"`
}
