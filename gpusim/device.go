package gpusim

import (
	"sort"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/engine"
)

// The recovery actions of a GPU, as the driver's recovery-action field numbers them.
const (
	recoveryNone   = 0
	recoveryReset  = 1
	recoveryReboot = 2
)

// device is one GPU. All fields but the first block are guarded by the node's mutex.
type device struct {
	node  *Node
	index int
	uuid  gpu.UUID
	model *Model
	cfg   GPUConfig
	// callLock is held by one call at a time: the driver serialises calls on the GPU until the hardware answers.
	callLock chan struct{}
	// writeLock is held by one call that changes the GPU, before its callLock.
	writeLock chan struct{}

	minor       int
	lost        bool
	recovery    int
	resets      int
	migCurrent  bool
	migPending  bool
	migStored   bool // the mode that the board stores, if it can
	mode        gpu.ComputeMode
	persistence bool
	instances   map[uint32]*instance
	contexts    map[*Context]struct{}
	limits      map[string]memoryLimit // of GPU memory, by cgroup
	unfreed     uint64                 // bytes that the driver has not freed after their process
	leaked      uint64                 // reservations that removed cgroups have left
	sensors     sensors
	engine      *engine.Engine
}

// instance is one GPU instance.
type instance struct {
	dev       *device
	id        uint32
	serial    uint32
	profile   *Profile
	placement gpu.Placement
	compute   map[uint32]*compute
	engine    *engine.Engine
	unfreed   uint64 // as of the GPU
}

// compute is one compute instance: one MIG device.
type compute struct {
	gi        *instance
	id        uint32
	serial    uint32
	profile   computeProfile
	placement gpu.Placement
	uuid      gpu.UUID
}

func newDevice(n *Node, index int, cfg GPUConfig) *device {
	g := &device{
		node:       n,
		index:      index,
		uuid:       cfg.UUID,
		model:      cfg.Model,
		cfg:        cfg,
		minor:      index,
		callLock:   make(chan struct{}, 1),
		writeLock:  make(chan struct{}, 1),
		migStored:  cfg.MIG,
		migPending: cfg.MIG,
		instances:  map[uint32]*instance{},
		contexts:   map[*Context]struct{}{},
		sensors:    newSensors(cfg.Model),
	}
	if g.uuid == "" {
		g.uuid = gpuUUID(n.cfg.Seed, index)
	}
	if cfg.Minor != nil {
		g.minor = *cfg.Minor
	}
	g.cfg.UUID = g.uuid
	return g
}

// loadLocked is a driver load: instances are removed, the compute mode is the default again, and the MIG mode is the one
// that the board stores. If the board does not store it, MIG mode is off, except at the first load, which applies the
// configuration.
func (g *device) loadLocked() {
	first := g.engine == nil
	g.clearLocked()
	g.mode = gpu.ComputeDefault
	if first && g.cfg.ComputeMode != "" {
		g.mode = g.cfg.ComputeMode
	}
	g.persistence = false
	g.limits, g.leaked = nil, 0 // the driver has forgotten them
	g.loadSensorsLocked()
	if !first && !g.model.ModeSurvivesBoot {
		g.migStored = false
	}
	g.migCurrent, g.migPending = g.migStored, g.migStored
}

// resetLocked is a GPU reset: instances are removed and a pending MIG mode becomes current. The compute mode does not
// change, because the driver stays loaded.
func (g *device) resetLocked() {
	g.clearLocked()
	g.resets++
	g.lost, g.recovery = false, recoveryNone
	g.migCurrent = g.migPending
	g.migStored = g.migPending
	g.resetSensorsLocked()
}

// clearLocked ends the contexts and removes the instances.
func (g *device) clearLocked() {
	g.unfreed = 0
	g.node.changes++
	for c := range g.contexts {
		c.endLocked()
	}
	for _, gi := range g.instances {
		gi.engine.Close()
	}
	g.instances = map[uint32]*instance{}
	if g.engine != nil {
		g.engine.Close()
	}
	g.engine = g.newEngine()
}

// sortedLocked returns the instances by placement.
func (g *device) sortedLocked() []*instance {
	out := make([]*instance, 0, len(g.instances))
	for _, gi := range g.instances {
		out = append(out, gi)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].placement.Start < out[j].placement.Start })
	return out
}

// sortedCompute returns the compute instances by id.
func (gi *instance) sortedCompute() []*compute {
	out := make([]*compute, 0, len(gi.compute))
	for _, ci := range gi.compute {
		out = append(out, ci)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].id < out[j].id })
	return out
}

// migDevicesLocked returns the MIG devices in the driver's order: by GPU instance id, then by compute instance id.
func (g *device) migDevicesLocked() []*compute {
	var out []*compute
	for _, gi := range g.instances {
		out = append(out, gi.sortedCompute()...)
	}
	sort.SliceStable(out, func(i, j int) bool {
		if out[i].gi.id != out[j].gi.id {
			return out[i].gi.id < out[j].gi.id
		}
		return out[i].id < out[j].id
	})
	return out
}

func (g *device) handleLocked() Handle { return makeHandle(kindGPU, g.node.load, g.index, 0, 0) }

func (gi *instance) handle() Handle { return makeHandle(kindGI, gi.serial, gi.dev.index, gi.id, 0) }

func (ci *compute) handle() Handle {
	return makeHandle(kindCI, ci.serial, ci.gi.dev.index, ci.gi.id, ci.id)
}

// device returns the handle of the compute instance as a MIG device.
func (ci *compute) device() Handle {
	return makeHandle(kindMIG, ci.serial, ci.gi.dev.index, ci.gi.id, ci.id)
}

// serverMemoryLocked is the memory of MPS servers on the whole GPU, or on one GPU instance.
func (g *device) serverMemoryLocked(gi *instance) uint64 {
	var sum uint64
	for _, s := range g.mpsServersLocked(nil) {
		if gi == nil || s.gi == gi {
			sum += s.memory
		}
	}
	return sum
}

// memoryLocked adds up the memory of contexts on the GPU or on one GPU instance. Instances reserve no memory.
func (g *device) memoryLocked(gi *instance) gpu.Memory {
	m := gpu.Memory{Total: g.model.TotalMiB * MiB, Reserved: g.model.ReservedMiB * MiB}
	if gi != nil {
		m = gpu.Memory{Total: gi.profile.MemoryMiB * MiB}
	}
	for c := range g.contexts {
		if gi == nil || c.gi() == gi {
			m.Used += c.memory + c.managed
		}
	}
	m.Used += g.serverMemoryLocked(gi)
	for _, in := range g.instances {
		if gi == nil || in == gi {
			m.Used += in.unfreed
		}
	}
	if gi == nil {
		m.Used += g.unfreed
	}
	m.Free = m.Total - m.Reserved - min(m.Used, m.Total-m.Reserved)
	return m
}

// recoveryLocked raises the recovery action of the GPU to a reset or a reboot, and never lowers it.
func (g *device) recoveryLocked(action int) {
	if g.recovery != recoveryReboot {
		g.recovery = action
	}
}

// unusableLocked: no context can be created. Other actions than a reset and a reboot leave the GPU usable.
func (g *device) unusableLocked() bool {
	return g.lost || g.recovery == recoveryReset || g.recovery == recoveryReboot
}
