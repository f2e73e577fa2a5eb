//go:build cgo

package nvml

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// Processes implements gpu.Driver.
func (d *Driver) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	return d.listed(ctx, id, func(v *device) ([]gpu.Process, nvml.Return) { return d.allProcesses(ctx, v) })
}

// InstanceProcesses implements gpu.Driver. It reads the lists of the instance's MIG devices, which NVIDIA documents as those of the
// instance (nvml.h, nvmlDeviceGetComputeRunningProcesses_v3), and all lists of the GPU when one of these devices is not found.
func (d *Driver) InstanceProcesses(ctx context.Context, id gpu.UUID, gi uint32) ([]gpu.Process, error) {
	return d.listed(ctx, id, func(v *device) ([]gpu.Process, nvml.Return) {
		h, ret := v.handle.GetGpuInstanceById(int(gi))
		if ret == nvml.SUCCESS {
			in, migs, ret := d.instance(v, h)
			if ret == nvml.SUCCESS && len(migs) > 0 && len(migs) == len(in.Compute) {
				return d.processesIn(ctx, v, migs)
			}
		}
		return d.allProcesses(ctx, v)
	})
}

// allProcesses reads the lists of a partitioned GPU and of each of its MIG devices.
func (d *Driver) allProcesses(ctx context.Context, v *device) ([]gpu.Process, nvml.Return) {
	_, migs, ret := d.instances(v)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return d.processes(ctx, v, migs)
}

// listed reads lists of a partitioned GPU, and the lists of another one.
func (d *Driver) listed(ctx context.Context, id gpu.UUID, partitioned func(v *device) ([]gpu.Process, nvml.Return)) ([]gpu.Process, error) {
	const op = "read the processes"
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer v.mu.Unlock()
	state, ret := d.migState(v.handle)
	if ret != nvml.SUCCESS {
		return nil, v.failed(op, ret)
	}
	read := func(v *device) ([]gpu.Process, nvml.Return) { return d.processes(ctx, v, nil) }
	if state.Current && d.symbols.has(migInstances) {
		read = partitioned
	}
	out, ret := read(v)
	return out, v.failed(op, ret)
}

// processList is one of the driver's three process lists.
type processList struct {
	kind gpu.ProcessKind
	name string // the symbol in the library
	fn   unsafe.Pointer
}

// processLists returns the lists that the library has. A process in two lists is one of MPS, or has the kind of the first.
func (d *Driver) processLists() []processList {
	all := []processList{
		{kind: gpu.ComputeProcess, name: "nvmlDeviceGetComputeRunningProcesses_v3"},
		{kind: gpu.MPSProcess, name: "nvmlDeviceGetMPSComputeRunningProcesses_v3"},
		{kind: gpu.GraphicsProcess, name: "nvmlDeviceGetGraphicsRunningProcesses_v3"},
	}
	var out []processList
	for _, l := range all {
		if l.name, l.fn = d.symbols.call(l.name); l.fn != nil {
			out = append(out, l)
		}
	}
	return out
}

// processes reads the processes that use memory of one GPU. With MIG the lists of the GPU may lack the instances, so
// those of each MIG device are read too. A process in several lists of one device is one row: the lists report the same
// memory.
func (d *Driver) processes(ctx context.Context, v *device, migs []migDevice) ([]gpu.Process, nvml.Return) {
	// The GPU has graphics without a partition.
	all := append(slices.Clip(migs), migDevice{handle: v.handle, gi: noInstance, ci: noInstance, graphics: true})
	return d.processesIn(ctx, v, all)
}

// processesIn reads the lists of these devices in order. A device without compute processes has no clients of MPS either, and their list
// is not read: the server has the context that its clients share (nvidia-cuda-mps-control(1)), and is in the list of processes with one
// (nvml.h). A list takes milliseconds, and the start of a lease on a vacant instance waits for one: between two devices v yields to it.
func (d *Driver) processesIn(ctx context.Context, v *device, devices []migDevice) ([]gpu.Process, nvml.Return) {
	type place struct {
		pid    uint32
		gi, ci uint32
	}
	seen := make(map[place]int) // where it is in out
	var out []gpu.Process
	for i := range devices {
		from := &devices[i]
		if i > 0 {
			v.yield(ctx)
		}
		raw, ret := address(from.handle)
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		idle := false // its list of compute processes was read, and is empty
		for _, l := range d.processLists() {
			if l.kind == gpu.GraphicsProcess && !from.graphics || l.kind == gpu.MPSProcess && idle {
				continue
			}
			rows, ret := listProcesses(l.fn, raw, d.rowSize[versionSuffix(l.name)])
			if absent(ret) {
				continue
			}
			if ret != nvml.SUCCESS {
				return nil, ret
			}
			idle = l.kind == gpu.ComputeProcess && len(rows) == 0
			for _, r := range rows {
				if r.gi == noInstance {
					r.gi = from.gi
				}
				if r.ci == noInstance {
					r.ci = from.ci
				}
				at := place{r.pid, r.gi, r.ci}
				i, again := seen[at]
				switch {
				case r.pid == 0:
				case !again:
					seen[at] = len(out)
					out = append(out, process(r, l.kind))
				case l.kind == gpu.MPSProcess:
					out[i].Kind = l.kind
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	return out, nvml.SUCCESS
}

// yield lets another reading of the GPU go first, if the caller wants that. The caller holds mu, and has no other reading running.
func (v *device) yield(ctx context.Context) {
	f := gpu.Yields(ctx)
	if f == nil {
		return
	}
	v.mu.Unlock()
	defer v.mu.Lock()
	f()
}

// process converts one row. The driver's "not available" (all bits set) becomes nil.
func process(r processRow, kind gpu.ProcessKind) gpu.Process {
	p := gpu.Process{PID: int(r.pid), Kind: kind}
	if r.memory != ^uint64(0) {
		p.Memory = &r.memory
	}
	if r.gi != noInstance {
		p.GI = &r.gi
	}
	if r.ci != noInstance {
		p.CI = &r.ci
	}
	return p
}

// versionSuffix returns the version at the end of a call's name, empty for the first version.
func versionSuffix(name string) string {
	if i := strings.LastIndex(name, "_v"); i >= 0 {
		return name[i:]
	}
	return ""
}

// rowSizes returns the row size by version of the call. The first releases of the 535 branch, 535.43 to 535.86, write
// wider rows in the third version; later releases do not (reported by several clients of the library).
func rowSizes(driver string) map[string]int {
	sizes := map[string]int{"": rowSizeV1, "_v2": rowSizeV2, "_v3": rowSizeV2}
	branch, rest, _ := strings.Cut(driver, ".")
	release, _, _ := strings.Cut(rest, ".")
	if n, err := strconv.Atoi(release); branch == "535" && err == nil && n >= 43 && n <= 86 {
		sizes["_v3"] = rowSize535
	}
	return sizes
}

// Utilization implements gpu.Driver.
func (d *Driver) Utilization(ctx context.Context, id gpu.UUID, since uint64) ([]gpu.UtilSample, uint64, error) {
	const op = "read the utilisation"
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return nil, since, err
	}
	defer v.mu.Unlock()
	raw, ret := address(v.handle)
	if ret != nvml.SUCCESS {
		return nil, since, v.failed(op, ret)
	}
	// Newer boards do not support the older call, older libraries lack the newer one.
	ret = nvml.ERROR_FUNCTION_NOT_FOUND
	var samples []gpu.UtilSample
	for _, name := range []string{"nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"} {
		fn := d.symbols.at[name]
		if fn == nil {
			continue
		}
		samples, ret = listSamples(fn, raw, name == "nvmlDeviceGetProcessUtilization", since)
		if ret != nvml.ERROR_NOT_SUPPORTED && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			break
		}
	}
	if ret != nvml.SUCCESS {
		return nil, since, v.failed(op, ret)
	}
	samples, newest := plausible(samples, since)
	return samples, newest, nil
}

// plausible drops impossible samples: the driver writes garbage rows for processes that have just ended. It also drops
// samples that are not newer than since.
func plausible(samples []gpu.UtilSample, since uint64) ([]gpu.UtilSample, uint64) {
	newest := since
	out := samples[:0]
	for _, s := range samples {
		if s.PID <= 0 || s.SM < 0 || s.SM > 100 || s.Mem < 0 || s.Mem > 100 || s.Time <= since {
			continue
		}
		newest = max(newest, s.Time)
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b gpu.UtilSample) int { return cmp.Compare(a.Time, b.Time) })
	return out, newest
}
