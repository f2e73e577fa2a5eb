package gpusim

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Driver is the port to the virtual node, for tests in one process. It makes the same calls in the same order as the
// worker makes in the vendor's library, so that "the third call hangs" has the same meaning.
type Driver struct {
	n      *Node
	c      *Client
	closed atomic.Bool // the process has ended: no further call is made

	excluded func(gpu.UUID) bool  // nil: no GPU is
	use      map[useKey]useBuffer // the last counters of instances; guarded by the node's mutex
}

// Exclude lets Node leave GPUs alone, as a worker does that was started without those that did not answer.
func (d *Driver) Exclude(excluded func(gpu.UUID) bool) { d.excluded = excluded }

// Driver opens the port as a privileged process with this pid.
func (n *Node) Driver(pid int) *Driver { return &Driver{n: n, c: n.NVML(pid, true)} }

// Close ends the use by the process.
func (d *Driver) Close() error {
	d.closed.Store(true)
	d.c.Close()
	return nil
}

// begin initialises the library the first time, and again after a reboot.
func (d *Driver) begin(ctx context.Context) Ret {
	if d.closed.Load() {
		return Uninitialized
	}
	d.n.mu.Lock()
	ready := d.c.inits > 0
	d.n.mu.Unlock()
	if ready {
		return Success
	}
	return d.c.init(ctx, initWithoutGPUs)
}

// fail returns the port's error. A call whose ctx ended is a timeout without a return code.
func fail(ctx context.Context, ret Ret, op string, id gpu.UUID) error {
	if ret == Timeout && ctx.Err() != nil {
		return &gpu.Error{Op: op, GPU: id, Err: gpu.ErrTimeout}
	}
	return ret.err(op, id)
}

// on runs calls on a GPU until one fails.
func (d *Driver) on(ctx context.Context, op string, id gpu.UUID, calls ...step) error {
	if ret := d.begin(ctx); ret != Success {
		return fail(ctx, ret, op, id)
	}
	d.n.mu.Lock()
	g := d.n.findLocked(string(id))
	var h Handle
	if g != nil {
		h = g.handleLocked()
		d.c.opened[g.index] = true
	}
	d.n.mu.Unlock()
	if g == nil || g.uuid != id {
		return NotFound.err(op, id)
	}
	for _, s := range calls {
		if d.closed.Load() {
			return Uninitialized.err(op, id)
		}
		if ret := d.c.at(ctx, s.name, h, func(t target) Ret { return s.body(t.g) }, kindGPU); ret != Success {
			return fail(ctx, ret, op, id)
		}
	}
	return nil
}

// step is one call of a sequence.
type step struct {
	name string
	body func(*device) Ret
}

// Node reads versions and GPUs.
func (d *Driver) Node(ctx context.Context) (gpu.NodeInfo, error) {
	const op = "read node"
	if ret := d.begin(ctx); ret != Success {
		return gpu.NodeInfo{}, fail(ctx, ret, op, "")
	}
	var info gpu.NodeInfo
	ret := d.c.call(ctx, "DeviceGetCount", nil, func() Ret {
		cfg := d.n.cfg
		info = gpu.NodeInfo{
			DriverVersion:  cfg.DriverVersion,
			LibraryVersion: cfg.nvmlVersion(),
			CUDAVersion:    cfg.CUDAVersion,
			Library:        "gpusim",
		}
		if cfg.Series == SeriesMissing {
			info.Missing = []string{"nvmlDeviceGetSamples"}
		}
		for _, g := range d.n.devices {
			info.GPUs = append(info.GPUs, g.identityLocked())
		}
		return Success
	})
	if ret != Success {
		return gpu.NodeInfo{}, fail(ctx, ret, op, "")
	}
	for i := range info.GPUs {
		id := &info.GPUs[i]
		if d.excluded != nil && d.excluded(id.UUID) {
			id.Error = gpu.ErrTimeout.Error()
			continue
		}
		// A GPU that does not answer stays in the list.
		if err := d.on(ctx, op, id.UUID, step{"DeviceGetHandleByIndex", func(*device) Ret { return Success }}); err != nil {
			if errors.Is(err, gpu.ErrTimeout) {
				return gpu.NodeInfo{}, err
			}
			id.Error = err.Error()
		}
	}
	return info, nil
}

func (g *device) identityLocked() gpu.Identity {
	return gpu.Identity{
		UUID: g.uuid, Index: g.index, Minor: g.minor, PCI: g.cfg.PCI, Model: g.model.Name,
		Memory: g.model.TotalMiB * MiB, NUMANode: g.cfg.NUMANode, Display: g.cfg.Display,
	}
}

// Snapshot reads the state of one GPU.
func (d *Driver) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	var s gpu.Snapshot
	err := d.on(ctx, "read", id,
		step{"DeviceGetMemoryInfo", func(g *device) Ret { s.Identity, s.Memory = g.identityLocked(), g.memoryLocked(nil); return Success }},
		step{"DeviceGetMigMode", func(g *device) Ret { s.MIG = g.migStateLocked(); return Success }},
		step{"DeviceGetComputeMode", func(g *device) Ret { s.ComputeMode = g.mode; return Success }},
		step{"DeviceGetPowerManagementLimit", func(g *device) Ret {
			if g.model.Sensors.Power != nil {
				s.PowerLimit = new(g.sensors.limit)
			}
			return Success
		}},
		step{"DeviceGetUtilizationRates", func(g *device) Ret {
			if !g.migCurrent {
				u := g.engine.Utilization()
				s.Utilization = &u
			}
			return Success
		}},
		step{"DeviceGetGpuInstances", func(g *device) Ret {
			for _, gi := range g.sortedLocked() {
				s.Instances = append(s.Instances, gi.reportedLocked())
			}
			return Success
		}},
		step{"DeviceGetComputeRunningProcesses", func(g *device) Ret { s.Processes = g.allProcessesLocked(); return Success }},
	)
	if err != nil {
		return gpu.Snapshot{}, err
	}
	return s, nil
}

func (g *device) migStateLocked() gpu.MIGState {
	if g.model.Grid == 0 {
		return gpu.MIGState{}
	}
	resetless := g.model.Resetless
	return gpu.MIGState{
		Capable:   true,
		Current:   g.migCurrent,
		Pending:   g.migPending,
		Resetless: &resetless,
		Missing:   g.node.cfg.ComputeReports.missingMIG(g.node.cfg.DriverVersion),
	}
}

// portLocked returns the instance as it is, in the words of the port.
func (gi *instance) portLocked() gpu.Instance {
	out := gpu.Instance{ID: gi.id, ProfileID: gi.profile.ID, Placement: gi.placement, Memory: gi.dev.memoryLocked(gi)}
	for _, ci := range gi.sortedCompute() {
		out.Compute = append(
			out.Compute, gpu.ComputeInstance{ID: ci.id, ProfileID: ci.profile.enum, Placement: ci.placement, UUID: ci.uuid},
		)
	}
	return out
}

func (g *device) allProcessesLocked() []gpu.Process {
	var out []gpu.Process
	for _, k := range []gpu.ProcessKind{gpu.ComputeProcess, gpu.GraphicsProcess, gpu.MPSProcess} {
		out = append(out, g.processesLocked(k, nil)...)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].PID < out[j].PID })
	return out
}

// Profiles reads the MIG profiles of the GPU.
func (d *Driver) Profiles(ctx context.Context, id gpu.UUID) (gpu.Profiles, error) {
	var out gpu.Profiles
	err := d.on(ctx, "read profiles", id, step{"DeviceGetGpuInstanceProfileInfoV", func(g *device) Ret {
		if ret := g.enumerable(); ret != Success {
			return ret
		}
		out = g.model.port()
		out.GI = slices.DeleteFunc(out.GI, func(p gpu.Profile) bool { return g.profileByID(p.ID) == nil })
		for i := range out.GI {
			p := g.model.byID(out.GI[i].ID)
			out.GI[i].Name = d.n.nameLocked(p)
			for _, gi := range g.instances {
				if gi.profile == p && out.GI[i].Compute == nil {
					out.GI[i].Compute = p.computePort()
				}
			}
		}
		return Success
	}})
	if err != nil {
		return gpu.Profiles{}, err
	}
	return out, nil
}

// port returns the model's profiles as the port describes them, without compute profiles.
func (m *Model) port() gpu.Profiles {
	var out gpu.Profiles
	for i := range m.Profiles {
		p := &m.Profiles[i]
		at := p.Placements()
		for _, q := range at {
			out.Width = max(out.Width, q.Start+q.Size)
		}
		attributes := slices.Clone(p.Attributes)
		sort.Strings(attributes)
		out.GI = append(out.GI, gpu.Profile{
			ID: p.ID, Name: p.Name, Slices: p.Slices, Memory: p.MemoryMiB * MiB, Max: p.Max,
			SMs: p.SMs, Placements: at, Attributes: attributes,
		})
	}
	sort.Slice(out.GI, func(i, j int) bool { return out.GI[i].ID < out.GI[j].ID })
	return out
}

// GPUProfiles returns the MIG profiles of a board, as the port reports them while no instance exists.
func (m *Model) GPUProfiles() gpu.Profiles { return m.port() }

func (p *Profile) computePort() []gpu.ComputeProfile {
	var out []gpu.ComputeProfile
	for _, cp := range computeProfiles {
		if computeFits(p.Slices, cp.slices) {
			out = append(out, gpu.ComputeProfile{ID: cp.enum, Slices: cp.slices, Max: uint32(len(computeStarts(p.Slices, cp.slices)))})
		}
	}
	return out
}

// Memory reads the memory of one GPU.
func (d *Driver) Memory(ctx context.Context, id gpu.UUID) (m gpu.Memory, err error) {
	err = d.on(ctx, "read memory", id, step{"DeviceGetMemoryInfo", func(g *device) Ret { m = g.memoryLocked(nil); return Success }})
	return m, err
}

// Processes reads the processes of one GPU.
func (d *Driver) Processes(ctx context.Context, id gpu.UUID) (out []gpu.Process, err error) {
	err = d.on(
		ctx, "read processes", id,
		step{"DeviceGetComputeRunningProcesses", func(g *device) Ret { out = g.allProcessesLocked(); return Success }},
	)
	return out, err
}

// InstanceProcesses reads the processes of one GPU, of which those of an instance are some.
func (d *Driver) InstanceProcesses(ctx context.Context, id gpu.UUID, _ uint32) ([]gpu.Process, error) {
	return d.Processes(ctx, id)
}

// Utilization reads the samples newer than since.
func (d *Driver) Utilization(ctx context.Context, id gpu.UUID, since uint64) ([]gpu.UtilSample, uint64, error) {
	var out []gpu.UtilSample
	err := d.on(ctx, "read utilization", id, step{d.n.utilizationCall(), func(g *device) Ret {
		if g.migCurrent {
			return NotSupported
		}
		out = g.utilizationLocked(since)
		return Success
	}})
	newest := since
	for _, s := range out {
		newest = max(newest, s.Time)
	}
	return out, newest, err
}

// UtilizationSeries reads the GPU's samples newer than since.
func (d *Driver) UtilizationSeries(ctx context.Context, id gpu.UUID, since uint64) (gpu.Series, error) {
	out := gpu.Series{Newest: since}
	err := d.on(ctx, "read utilization series", id, step{"DeviceGetSamples", func(g *device) Ret {
		samples, ret := g.seriesLocked(since)
		for _, s := range samples {
			out.Samples = append(out.Samples, gpu.SeriesSample{Time: s.Time, Percent: s.Percent})
			out.Newest = max(out.Newest, s.Time)
		}
		if ret == NotFound {
			return Success
		}
		return ret
	}})
	return out, err
}

// NVLinks reads the peers of the NVLinks of one GPU.
func (d *Driver) NVLinks(ctx context.Context, id gpu.UUID) (out gpu.NVLinks, err error) {
	err = d.on(ctx, "read the NVLinks", id, step{"DeviceGetNvLinkState", func(g *device) Ret { out = g.linksLocked(); return Success }})
	return out, err
}

// SetMemoryLimit sets or removes the hard limit of a cgroup.
func (d *Driver) SetMemoryLimit(ctx context.Context, id gpu.UUID, cgroup string, hard *uint64) error {
	const op = "set the memory limit"
	if d.n.cfg.Cgroups == nil {
		return &gpu.Error{Op: op, GPU: id, Err: gpu.ErrMissing}
	}
	limit := noLimit
	if hard != nil {
		limit = *hard
	}
	return d.on(ctx, op, id, step{"DeviceSetMemoryLimits", func(g *device) Ret { return g.setLimitLocked(cgroup, 0, limit) }})
}

// MemoryLimit reads the limit of a cgroup.
func (d *Driver) MemoryLimit(ctx context.Context, id gpu.UUID, cgroup string) (out gpu.MemoryLimit, err error) {
	const op = "read the memory limit"
	if d.n.cfg.Cgroups == nil {
		return out, &gpu.Error{Op: op, GPU: id, Err: gpu.ErrMissing}
	}
	err = d.on(ctx, op, id, step{"DeviceGetMemoryLimits", func(g *device) Ret {
		_, hard, used, ret := g.limitLocked(cgroup)
		if hard != noLimit {
			out.Hard = &hard
		}
		out.Used = used
		return ret
	}})
	return out, err
}

// SetMIGMode requests MIG mode on or off.
func (d *Driver) SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (gpu.ModeChange, error) {
	var change gpu.ModeChange
	var activation Ret
	err := d.on(ctx, "set MIG mode", id,
		step{"DeviceSetMigMode", func(g *device) (ret Ret) { activation, ret = g.setMIGLocked(on, d.c.pid); return ret }},
		step{"DeviceGetMigMode", func(g *device) Ret {
			change.Current, change.Pending, change.Minor = g.migCurrent, g.migPending, g.minor
			return Success
		}},
	)
	if err == nil && change.Current != change.Pending && activation != Success {
		change.Activation = activation.sentinel()
	}
	return change, err
}

// CreateInstance creates one GPU instance with its compute instances.
func (d *Driver) CreateInstance(ctx context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error) {
	const op = "create instance"
	var serial, gi uint32
	err := d.on(ctx, op, id, step{"DeviceCreateGpuInstanceWithPlacement", func(g *device) Ret {
		created, ret := g.createGILocked(want.ProfileID, &want.Placement)
		if ret == Success {
			gi, serial = created.id, created.serial
			if len(want.Compute) == 0 {
				want.Compute = []gpu.NewCompute{{Slices: created.profile.Slices}}
			}
		}
		return ret
	}})
	if err != nil {
		return gpu.Instance{}, err
	}
	out, err := d.complete(ctx, op, id, gi, want.Compute)
	if err != nil {
		// The undo has its own deadline, because the ctx of the caller may have ended.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = d.on(undo, op, id, step{"GpuInstanceDestroy", func(g *device) Ret {
			created := g.instances[gi]
			if created == nil || created.serial != serial {
				return Success
			}
			for _, ci := range created.sortedCompute() {
				if ret := ci.destroyLocked(); ret != Success {
					return ret
				}
			}
			return created.destroyLocked()
		}})
		return gpu.Instance{}, err
	}
	return out, nil
}

// complete creates compute instances in a GPU instance and reads it back.
func (d *Driver) complete(ctx context.Context, op string, id gpu.UUID, gi uint32, compute []gpu.NewCompute) (gpu.Instance, error) {
	var out gpu.Instance
	var calls []step
	for _, c := range gpu.ComputeOrder(compute) {
		calls = append(calls, step{"GpuInstanceCreateComputeInstance", func(g *device) Ret {
			in := g.instances[gi]
			if in == nil {
				return NotFound
			}
			profile, ok := computeID(c.Slices)
			if !ok {
				return NotSupported
			}
			_, ret := in.createCILocked(profile, in.requestedAt(c))
			return ret
		}})
	}
	calls = append(calls, step{"GpuInstanceGetInfo", func(g *device) Ret {
		in := g.instances[gi]
		if in == nil {
			return NotFound
		}
		out = in.reportedLocked()
		return Success
	}})
	err := d.on(ctx, op, id, calls...)
	return out, err
}

// CompleteInstance creates the missing compute instances of a GPU instance.
func (d *Driver) CompleteInstance(ctx context.Context, id gpu.UUID, gi uint32, compute []gpu.NewCompute) (gpu.Instance, error) {
	const op = "complete instance"
	err := d.on(ctx, op, id, step{"GpuInstanceGetComputeInstances", func(g *device) Ret {
		in := g.instances[gi]
		if in == nil {
			return NotFound
		}
		if len(compute) == 0 {
			compute = []gpu.NewCompute{{Slices: in.profile.Slices}}
		}
		compute = gpu.MissingCompute(compute, in.reportedLocked().Compute)
		return Success
	}})
	if err != nil {
		return gpu.Instance{}, err
	}
	return d.complete(ctx, op, id, gi, compute)
}

// DestroyInstance destroys the compute instances and then the GPU instance.
func (d *Driver) DestroyInstance(ctx context.Context, id gpu.UUID, gi uint32) error {
	const op = "destroy instance"
	var ids []uint32
	if err := d.on(ctx, op, id, step{"DeviceGetGpuInstanceById", func(g *device) Ret {
		in := g.instances[gi]
		if in == nil {
			return NotFound
		}
		for _, ci := range in.sortedCompute() {
			ids = append(ids, ci.id)
		}
		return Success
	}}); err != nil {
		return err
	}
	var calls []step
	for _, ci := range ids {
		calls = append(calls, step{"ComputeInstanceDestroy", func(g *device) Ret {
			in := g.instances[gi]
			if in == nil || in.compute[ci] == nil {
				return NotFound
			}
			return in.compute[ci].destroyLocked()
		}})
	}
	calls = append(calls, step{"GpuInstanceDestroy", func(g *device) Ret {
		if in := g.instances[gi]; in != nil {
			return in.destroyLocked()
		}
		return NotFound
	}})
	return d.on(ctx, op, id, calls...)
}

// SetComputeMode sets the compute mode.
func (d *Driver) SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	return d.on(ctx, "set compute mode", id, step{"DeviceSetComputeMode", func(g *device) Ret {
		switch mode {
		case gpu.ComputeDefault, gpu.ComputeExclusiveProcess, gpu.ComputeProhibited:
			g.mode = mode
			return Success
		}
		return InvalidArgument
	}})
}

// Events calls f for every event until ctx ends or the node reboots.
func (d *Driver) Events(ctx context.Context, f func(gpu.Event)) error {
	const op = "wait for events"
	if ret := d.begin(ctx); ret != Success {
		return fail(ctx, ret, op, "")
	}
	var set Handle
	if ret := d.c.call(ctx, "EventSetCreate", nil, func() Ret {
		set = d.c.newEventSetLocked()
		for _, g := range d.n.devices {
			d.n.events[set.generation()].masks[g.index] = g.supportedEvents() &^ eventRecovery
		}
		return Success
	}); ret != Success {
		return fail(ctx, ret, op, "")
	}
	defer func() {
		d.n.mu.Lock()
		defer d.n.mu.Unlock()
		delete(d.n.events, set.generation())
	}()
	f(gpu.Event{Time: d.n.clock.Now(), Kind: gpu.EventWatching})
	for {
		e, ret := d.c.wait(ctx, set, time.Hour)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case ret == Timeout:
			continue
		case ret != Success:
			return fail(ctx, ret, op, "")
		}
		f(e.port())
	}
}

// port converts an event.
func (e Event) port() gpu.Event {
	out := gpu.Event{Time: e.Time, GPU: e.GPU}
	if e.GI != none {
		out.GI = &e.GI
	}
	if e.CI != none {
		out.CI = &e.CI
	}
	switch e.Type {
	case eventXID:
		out.Kind, out.XID = gpu.EventXID, e.Data
	case eventMIGConfig:
		out.Kind = gpu.EventMIGConfig
	case eventSingleECC, eventDoubleECC:
		out.Kind = gpu.EventECC
	default:
		out.Kind = gpu.EventLost
	}
	return out
}

var _ gpu.Driver = (*Driver)(nil)
