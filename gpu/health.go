package gpu

// Health is one reading of the sensors and the error counters of a GPU. A nil field is one that the driver or the board does
// not report: boards without ECC have no counters of errors, boards before Ampere no remapped rows.
type Health struct {
	Temperature *int `json:"temperature,omitempty"` // of the GPU, °C
	// MemoryTemperature is in °C; boards with GDDR often lack it.
	MemoryTemperature *int `json:"memory_temperature,omitempty"`
	// SlowdownTemperature is the temperature in °C at which the hardware lowers its clocks by itself.
	SlowdownTemperature *int `json:"slowdown_temperature,omitempty"`
	// Power is nil where the board does not measure it.
	Power *Power `json:"power,omitempty"`
	// Throttle are the reasons why clocks are lowered now, of the Throttle… words; sorted. nil when the driver does not report
	// them; empty, not nil, when there are none.
	Throttle []string `json:"throttle"`
	// ECC counts errors of memory since the board was made (aggregate counters). They survive a boot.
	ECC *ECCErrors `json:"ecc,omitempty"`
	// Rows are the rows of memory that were replaced by spare ones.
	Rows *RemappedRows `json:"rows,omitempty"`
	// NVLinkErrors are summed over all links since the driver was loaded.
	NVLinkErrors *NVLinkErrors `json:"nvlink_errors,omitempty"`
	// PCIeReplays counts repeated transfers since the driver was loaded.
	PCIeReplays *uint64 `json:"pcie_replays,omitempty"`
	// Recovery is what the driver says that the GPU needs (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), one of the Recovery… words, or
	// "action-" and a number that is not known here.
	// Empty when it does not report it: drivers before R570.
	Recovery string `json:"recovery,omitempty"`
}

// Power is in milliwatts.
type Power struct {
	Usage   uint64 `json:"usage"`
	Limit   uint64 `json:"limit"`   // that is set
	Default uint64 `json:"default"` // of the board
	Min     uint64 `json:"min"`     // that may be set
	Max     uint64 `json:"max"`
}

// ECCErrors counts errors of memory.
type ECCErrors struct {
	Corrected   uint64 `json:"corrected"`
	Uncorrected uint64 `json:"uncorrected"`
}

// RemappedRows describes the rows of memory that were replaced (nvmlDeviceGetRemappedRows).
type RemappedRows struct {
	Corrected   uint32 `json:"corrected"`   // because of corrected errors
	Uncorrected uint32 `json:"uncorrected"` // because of uncorrected errors
	Pending     bool   `json:"pending"`     // a reset of the GPU replaces more
	Failed      bool   `json:"failed"`      // one could not be replaced: the board is to be exchanged
	// Banks counts the banks of memory by the spare rows that they have left (nvmlDeviceGetRowRemapperHistogram). nil when the
	// driver does not report it.
	Banks *RowBanks `json:"banks,omitempty"`
}

// RowBanks counts banks of memory by the spare rows that they have left.
type RowBanks struct {
	Max     uint32 `json:"max"`     // all spare rows
	High    uint32 `json:"high"`    // some are used
	Partial uint32 `json:"partial"` // more are used
	Low     uint32 `json:"low"`     // few are left
	None    uint32 `json:"none"`    // none is left
}

// NVLinkErrors are summed over the links of a GPU.
type NVLinkErrors struct {
	CRC      uint64 `json:"crc"`
	Replay   uint64 `json:"replay"`
	Recovery uint64 `json:"recovery"`
}

// The reasons why a GPU lowers its clocks (nvmlClocksEventReasons). Reasons that are no trouble, as an idle GPU and clocks
// that an application set, are not among them.
const (
	ThrottlePowerCap        = "power-cap"        // the power limit that is set (SW power cap)
	ThrottleThermal         = "thermal"          // the driver, because of the temperature (SW thermal slowdown)
	ThrottleHardware        = "hardware"         // the hardware, whatever the reason (HW slowdown)
	ThrottleHardwareThermal = "hardware-thermal" // the hardware, because of the temperature
	ThrottlePowerBrake      = "power-brake"      // the hardware, because of a signal from outside of the board
)

// What a GPU needs, as the driver says.
const (
	RecoveryNone          = "none"
	RecoveryReset         = "reset"           // a reset of the GPU
	RecoveryReboot        = "reboot"          // a boot of the node
	RecoveryDrainP2P      = "drain-p2p"       // no peer-to-peer traffic
	RecoveryDrainAndReset = "drain-and-reset" // the work ends, then a reset
	RecoveryIMEX          = "recover-imex"    // the IMEX domain, which shares memory between nodes
	RecoveryBusReset      = "bus-reset"       // a reset of its PCIe bus
)

// ResetCommands says how an administrator resets a GPU, whose name is as commands take it. The tool of the vendor refuses the reset
// while any process has the GPU open, and the worker of gpushare has every GPU open.
func ResetCommands(name string) string {
	return "'gpushare maintenance on --driver --wait 1h' ends the NVML worker, which has the GPU open, when no lease is left; then 'nvidia-smi --gpu-reset -i " + name +
		"' and 'gpushare maintenance off'"
}
