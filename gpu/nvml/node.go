//go:build cgo

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// Node implements gpu.Driver.
func (d *Driver) Node(ctx context.Context) (gpu.NodeInfo, error) {
	info := gpu.NodeInfo{DriverVersion: d.version, Library: d.path, Missing: slices.Clone(d.symbols.missing)}
	info.LibraryVersion = d.nvmlVersion()
	if d.symbols.has(cudaVersion) {
		info.CUDAVersion = d.cuda()
	}
	gpus, err := d.enumerate(ctx)
	if err != nil {
		return info, err
	}
	info.GPUs = gpus
	d.mu.Lock()
	d.order = slices.Clone(gpus)
	d.mu.Unlock()
	return info, nil
}

// nvmlVersion reads the version of the library; empty when it cannot be read.
func (d *Driver) nvmlVersion() string {
	if !d.symbols.has(libraryVersion) {
		return ""
	}
	v, _ := d.lib.SystemGetNVMLVersion()
	return v
}

// cuda reads the CUDA version; 0 when it is not known.
func (d *Driver) cuda() int {
	var v int
	var ret nvml.Return
	if name, _ := d.symbols.call("nvmlSystemGetCudaDriverVersion_v2"); name == "nvmlSystemGetCudaDriverVersion_v2" {
		v, ret = d.lib.SystemGetCudaDriverVersion_v2()
	} else {
		v, ret = d.lib.SystemGetCudaDriverVersion()
	}
	if ret != nvml.SUCCESS {
		return 0
	}
	return v
}

// entry is one entry of the driver's list of GPUs, with a function that reads the handle.
type entry struct {
	last gpu.Identity // as last read, or what is known without access to the GPU
	find func() (nvml.Device, nvml.Return)
}

// entries lists the GPUs without access to them. The library attaches to a GPU when its handle is read, and also to other
// GPUs when it is read by index or UUID. Therefore the kernel module's list is used where it is complete. It also has the
// UUID of a GPU before the first access.
func (d *Driver) entries() ([]entry, nvml.Return) {
	n, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var out []entry
	if found := d.kernelList(); len(found) == n {
		for _, k := range found {
			if !d.excludes(k.uuid) {
				out = append(
					out,
					entry{d.lastKnown(k.uuid), func() (nvml.Device, nvml.Return) { return d.lib.DeviceGetHandleByPciBusId(k.pci) }},
				)
			}
		}
		return out, nvml.SUCCESS
	}
	for i := range n {
		if last := d.lastKnownAt(i); !d.excludes(last.UUID) {
			out = append(out, entry{last, func() (nvml.Device, nvml.Return) { return d.lib.DeviceGetHandleByIndex(i) }})
		}
	}
	return out, nvml.SUCCESS
}

// kernelList returns the kernel module's list if it has the UUID of every GPU.
func (d *Driver) kernelList() []kernelGPU {
	if !d.symbols.has(byPCI) {
		return nil
	}
	found, err := kernelGPUs(d.o.hostRoot)
	if err != nil {
		d.o.log.Debug("the kernel's list of GPUs cannot be used", "err", err)
		return nil
	}
	for _, k := range found {
		if !isGPU(k.uuid) {
			return nil // a GPU that was never initialised has no UUID yet
		}
	}
	return found
}

// handle reads the handle of one GPU, without access to others where the kernel module's list has its address.
func (d *Driver) handle(id gpu.UUID) (nvml.Device, nvml.Return) {
	if !isGPU(id) {
		return nil, nvml.ERROR_NOT_FOUND // a MIG device is not a GPU of the node
	}
	for _, k := range d.kernelList() {
		if k.uuid == id {
			return d.lib.DeviceGetHandleByPciBusId(k.pci)
		}
	}
	h, ret := d.lib.DeviceGetHandleByUUID(string(id))
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		ret = nvml.ERROR_NOT_FOUND
	}
	return h, ret
}

// enumerate reads the GPUs in the driver's order. A GPU that cannot be read stays in the list.
func (d *Driver) enumerate(ctx context.Context) ([]gpu.Identity, error) {
	entries, ret := d.entries()
	if ret != nvml.SUCCESS {
		return nil, fail("list the GPUs", "", ret)
	}
	out := make([]gpu.Identity, 0, len(entries))
	for _, s := range entries {
		if s.last.UUID != "" {
			gpu.ReportProgress(ctx, s.last.UUID)
		}
		if got, skip := d.identify(s.last, s.find); !skip {
			out = append(out, got)
		}
	}
	slices.SortStableFunc(out, func(a, b gpu.Identity) int { return cmp.Compare(a.Index, b.Index) })
	return out, nil
}

// excludes reports whether the GPU must not be accessed.
func (d *Driver) excludes(id gpu.UUID) bool { return slices.Contains(d.o.excluded, id) }

// lastKnown returns the last known identity of a GPU.
func (d *Driver) lastKnown(id gpu.UUID) gpu.Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.order {
		if g.UUID == id {
			return g
		}
	}
	return gpu.Identity{UUID: id, Index: -1, Minor: -1, NUMANode: -1}
}

// lastKnownAt returns the last known identity of the GPU at index i.
func (d *Driver) lastKnownAt(i int) gpu.Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.order {
		if g.Index == i {
			return g
		}
	}
	return gpu.Identity{Index: i, Minor: -1, NUMANode: -1}
}

// identify reads one GPU. While another operation uses the GPU, which may take a minute, it returns the last identity.
// skip is true for an excluded GPU.
func (d *Driver) identify(last gpu.Identity, find func() (nvml.Device, nvml.Return)) (got gpu.Identity, skip bool) {
	if last.UUID != "" && last.Error == "" && last.Model != "" {
		d.mu.Lock()
		v := d.devices[last.UUID]
		d.mu.Unlock()
		if v != nil {
			if !v.mu.TryLock() {
				return last, false
			}
			defer v.mu.Unlock()
		}
	}
	h, ret := find()
	if ret == nvml.SUCCESS {
		var id string
		id, ret = h.GetUUID()
		if d.excludes(gpu.UUID(id)) {
			return got, true
		}
		if ret == nvml.SUCCESS {
			got, ret = d.identity(h, gpu.UUID(id))
		}
	}
	if ret != nvml.SUCCESS {
		last.Error = fmt.Sprintf("%v (NVML code %d)", sentinel(ret), int(ret))
		return last, false
	}
	return got, false
}

// identity reads the identity of one GPU.
func (d *Driver) identity(h nvml.Device, id gpu.UUID) (gpu.Identity, nvml.Return) {
	g := gpu.Identity{UUID: id, Minor: -1, NUMANode: -1}
	m, ret := d.memory(h)
	if ret != nvml.SUCCESS {
		return g, ret
	}
	g.Memory = m.Total
	if g.Index, ret = h.GetIndex(); ret != nvml.SUCCESS {
		return g, ret
	}
	if d.symbols.has(model) {
		if s, ret := h.GetName(); ret == nvml.SUCCESS {
			g.Model = s
		} else if !absent(ret) {
			return g, ret
		}
	}
	if d.symbols.has(minorNumber) {
		if n, ret := h.GetMinorNumber(); ret == nvml.SUCCESS {
			g.Minor = n
		} else if !absent(ret) {
			return g, ret
		}
	}
	if d.symbols.has(pciInfo) {
		if p, ret := h.GetPciInfo(); ret == nvml.SUCCESS {
			g.PCI = pciAddress(p)
			g.PCIDevice, g.PCISubsystem = p.PciDeviceId, p.PciSubSystemId
			g.NUMANode = numaNode(d.o.hostRoot, g.PCI)
		} else if !absent(ret) {
			return g, ret
		}
	}
	g.Display = d.display(h)
	return g, nvml.SUCCESS
}

// display reports whether a display is attached or active; false when it is not known.
func (d *Driver) display(h nvml.Device) bool {
	if d.symbols.has(displayActive) {
		if on, ret := h.GetDisplayActive(); ret == nvml.SUCCESS && on == nvml.FEATURE_ENABLED {
			return true
		}
	}
	if d.symbols.has(displayMode) {
		if on, ret := h.GetDisplayMode(); ret == nvml.SUCCESS && on == nvml.FEATURE_ENABLED {
			return true
		}
	}
	return false
}

// pciAddress formats the address as the kernel does. GPUs are at function 0.
func pciAddress(p nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

// numaNode reads the NUMA node of a PCI device, -1 when the kernel does not report it.
func numaNode(root, pci string) int {
	b, err := boundedread.Trusted(filepath.Join(root, "sys/bus/pci/devices", pci, "numa_node"), boundedread.Value)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// kernelGPU is one GPU as the kernel module lists it.
type kernelGPU struct {
	pci  string
	uuid gpu.UUID
}

// kernelGPUs reads /proc/driver/nvidia/gpus, without access to a GPU.
func kernelGPUs(root string) ([]kernelGPU, error) {
	dir := filepath.Join(root, "proc/driver/nvidia/gpus")
	entries, _, err := boundedread.Entries(dir, boundedread.Files)
	if err != nil {
		return nil, fmt.Errorf("cannot list the kernel's GPUs: %w", err)
	}
	var out []kernelGPU
	for _, e := range entries {
		b, err := boundedread.Trusted(filepath.Join(dir, e.Name(), "information"), boundedread.Value)
		if err != nil {
			return nil, fmt.Errorf("cannot read the kernel's GPU: %w", err)
		}
		out = append(out, kernelGPU{pci: e.Name(), uuid: kernelUUID(b)})
	}
	return out, nil
}

// kernelUUID finds the UUID among the lines "name: value"; empty when there is none.
func kernelUUID(information []byte) gpu.UUID {
	for line := range strings.Lines(string(information)) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == "GPU UUID" {
			return gpu.UUID(strings.TrimSpace(value))
		}
	}
	return ""
}
