package store

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Closure is why a place takes no lease, and who closed it. Package closing says what it means and changes the list.
type Closure struct {
	Where
	Kind   string    `json:"kind"` // one of the constants below
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"` // zero: until it is opened
	Reason string    `json:"reason,omitempty"`
	// What only closures of one kind have.
	Faults      int                `json:"faults,omitempty"` // held back: how many its processes caused
	Held        *HeldRecord        `json:"held,omitempty"`
	Health      *HealthRecord      `json:"health,omitempty"`
	Maintenance *MaintenanceRecord `json:"maintenance,omitempty"`
}

// HeldRecord is the change that failed on a GPU.
type HeldRecord struct {
	Generation uint64 `json:"generation"` // of the spec that was tried
	// Boot is the kernel's boot id while the GPU keeps a MIG mode that only another boot makes current; empty: it waits for none.
	Boot string `json:"boot,omitempty"`
}

// HealthRecord is what package health knows of a GPU that it closed, next to since when and the cause.
type HealthRecord struct {
	State  string `json:"state"`
	XID    uint64 `json:"xid,omitempty"`
	Failed string `json:"failed,omitempty"`
	Boot   string `json:"boot,omitempty"`
	Driver string `json:"driver,omitempty"`
	Bad    bool   `json:"bad,omitempty"`
	Lost   bool   `json:"lost,omitempty"`
}

// MaintenanceRecord is what the driver was when the node was taken out of service.
type MaintenanceRecord struct {
	// Driver: the driver is to be replaced. MPS is stopped and no NVML worker runs once no lease uses a GPU: Parked is then set.
	Driver bool `json:"driver,omitempty"`
	Parked bool `json:"parked,omitempty"`
	// Boot is the kernel's boot id of the request: no lease survives a boot.
	Boot          string         `json:"boot"`
	DriverVersion string         `json:"driver_version,omitempty"` // empty: it was not read
	GPUs          []gpu.Identity `json:"gpus,omitempty"`
}

// Where is the place of a closure.
type Where struct {
	GPU      gpu.UUID      `json:"gpu,omitempty"`     // empty: all of the node
	Instance gpu.Placement `json:"instance,omitzero"` // its size is 0 for the whole GPU
	Compute  gpu.UUID      `json:"compute,omitempty"` // the MIG device of one of the instance's several compute instances
	Tenant   string        `json:"tenant,omitempty"`  // that gets no lease there; empty: no tenant does
}

// The kinds of closures on disk. One kind closes a place once.
const (
	ClosureMaintenance = "maintenance"
	ClosureHeld        = "held"
	ClosureUnhealthy   = "unhealthy"
	ClosureCordoned    = "cordoned"
	ClosureDrained     = "drained"
	ClosureHeldBack    = "held-back"
)
