package gpusim

import (
	"maps"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// View is the true state of a node, independent of faults.
type View struct {
	State         DriverState `json:"state"`
	DriverVersion string      `json:"driver_version"`
	BootID        string      `json:"boot_id"`
	Boots         int         `json:"boots"`
	Loads         int         `json:"loads"` // of the driver, boots included
	GPUs          []GPUView   `json:"gpus"`
	Clients       []int       `json:"clients,omitempty"`  // pids of clients that initialised the library
	Switches      []string    `json:"switches,omitempty"` // the NVSwitches' PCI addresses
	FabricManager bool        `json:"fabric_manager,omitempty"`
	Modules       []string    `json:"modules,omitempty"` // that are loaded, of Modules
	NodesByHelper bool        `json:"nodes_by_helper,omitempty"`
}

// GPUView is the true state of one GPU.
type GPUView struct {
	gpu.Snapshot
	Model    *Model `json:"-"`
	Lost     bool   `json:"lost,omitempty"`
	Recovery int    `json:"recovery,omitempty"` // 0 none, 1 reset, 2 reboot; the others as the driver numbers them
	Resets   int    `json:"resets"`
	// Health are the sensors and counters.
	Health *gpu.Health `json:"health"`
	// MemoryLimits are those of cgroups; Leaked are the bytes of reservations that removed cgroups have left.
	MemoryLimits []MemoryLimitView `json:"memory_limits,omitempty"`
	Leaked       uint64            `json:"leaked,omitempty"`
	// Busy is the GPU time of each process in seconds over the requested window, including its instances. A GPU instance
	// counts as a whole GPU.
	Busy map[int]float64 `json:"busy,omitempty"`
}

// View returns the state of the node. Busy times are over the last window, at most 64 s; 0 is since the start.
func (n *Node) View(window time.Duration) View {
	n.mu.Lock()
	defer n.mu.Unlock()
	state := n.cfg.State
	if state == DriverReady && n.mismatchLocked() {
		state = DriverMismatch
	}
	v := View{
		State:         state,
		DriverVersion: n.cfg.DriverVersion,
		BootID:        n.bootID,
		Boots:         n.bootN,
		Loads:         int(n.load),
		Modules:       n.modulesLocked(),
		NodesByHelper: n.cfg.NodesByHelper,
	}
	for i := range n.cfg.Switches {
		v.Switches = append(v.Switches, switchAddress(i))
	}
	v.FabricManager = n.cfg.Switches > 0 && !n.cfg.NoFabricManager
	for c := range n.clients {
		if c.inits > 0 {
			v.Clients = append(v.Clients, c.pid)
		}
	}
	for _, g := range n.devices {
		gv := GPUView{
			Model: g.model, Lost: g.lost, Recovery: g.recovery, Resets: g.resets, Health: g.healthLocked(), Busy: map[int]float64{},
			Snapshot: gpu.Snapshot{
				Identity: g.identityLocked(), Memory: g.memoryLocked(nil), ComputeMode: g.mode,
				MIG: g.migStateLocked(), Processes: g.allProcessesLocked(),
			},
		}
		gv.MemoryLimits, gv.Leaked = g.limitViewsLocked(), g.leaked
		busy := g.engine.BusyOver(window)
		if !g.migCurrent {
			u := g.engine.Utilization()
			gv.Utilization = &u
		}
		for _, gi := range g.sortedLocked() {
			gv.Instances = append(gv.Instances, gi.portLocked())
			for pid, d := range gi.engine.BusyOver(window) {
				busy[pid] += d
			}
		}
		for pid, d := range busy {
			gv.Busy[pid] = d.Seconds()
		}
		v.GPUs = append(v.GPUs, gv)
	}
	return v
}

// Latency returns the durations of calls by pattern.
func (n *Node) Latency() map[string]time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.cfg.Latency)
}
