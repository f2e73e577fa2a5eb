//go:build cgo

package nvml

import (
	"cmp"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// migDevice is the handle of one compute instance, with which its processes and memory are read.
type migDevice struct {
	handle   nvml.Device
	gi, ci   uint32
	graphics bool // its profile can do graphics
}

// instances reads all GPU instances, including those without a compute instance.
func (d *Driver) instances(v *device) ([]gpu.Instance, []migDevice, nvml.Return) {
	profiles, ret := d.giProfiles(v)
	if ret != nvml.SUCCESS {
		return nil, nil, ret
	}
	var out []gpu.Instance
	var migs []migDevice
	for _, p := range profiles {
		found, ret := v.handle.GetGpuInstances(&p.info)
		if absent(ret) {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, nil, ret
		}
		for _, gi := range found {
			in, m, ret := d.instance(v, gi)
			if ret == nvml.ERROR_NOT_FOUND {
				continue // destroyed in the meantime
			}
			if ret != nvml.SUCCESS {
				return nil, nil, ret
			}
			out = append(out, in)
			migs = append(migs, m...)
		}
	}
	slices.SortFunc(out, func(a, b gpu.Instance) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) })
	return out, migs, nvml.SUCCESS
}

// instance reads one GPU instance with its compute instances.
func (d *Driver) instance(v *device, gi nvml.GpuInstance) (gpu.Instance, []migDevice, nvml.Return) {
	info, ret := gi.GetInfo()
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, nil, ret
	}
	in := gpu.Instance{
		ID: info.Id, ProfileID: info.ProfileId,
		Placement: gpu.Placement{Start: info.Placement.Start, Size: info.Placement.Size},
	}
	found, ret := d.computeInstances(v, gi, info.ProfileId)
	if ret != nvml.SUCCESS {
		return in, nil, ret
	}
	graphics := slices.ContainsFunc(v.profiles, func(p giProfile) bool {
		return p.ID == info.ProfileId && slices.Contains(p.Attributes, "gfx")
	})
	var migs []migDevice
	for _, c := range found {
		one := gpu.ComputeInstance{
			ID: c.info.Id, ProfileID: c.info.ProfileId,
			Placement: gpu.Placement{Start: c.info.Placement.Start, Size: c.info.Placement.Size},
		}
		if one.Placement.Size == 0 {
			one.Slices = c.slices
		}
		h, id, ret := d.migDevice(v, info.Id, c.info)
		if ret != nvml.SUCCESS {
			return in, nil, ret
		}
		if h != nil {
			one.UUID = id
			migs = append(migs, migDevice{handle: h, gi: info.Id, ci: c.info.Id, graphics: graphics})
		}
		in.Compute = append(in.Compute, one)
	}
	if len(migs) > 0 {
		// All compute instances of a GPU instance share its memory.
		if in.Memory, ret = d.memory(migs[0].handle); ret != nvml.SUCCESS && !absent(ret) {
			return in, nil, ret
		}
	}
	return in, migs, nvml.SUCCESS
}

// foundCompute is one existing compute instance.
type foundCompute struct {
	handle nvml.ComputeInstance
	info   nvml.ComputeInstanceInfo
	slices uint32 // of its profile
}

// computeInstances lists the compute instances of a GPU instance by placement.
func (d *Driver) computeInstances(v *device, gi nvml.GpuInstance, profile uint32) ([]foundCompute, nvml.Return) {
	profiles, ret := d.computeProfiles(v, gi, profile)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var out []foundCompute
	for _, p := range profiles {
		found, ret := gi.GetComputeInstances(&p.info)
		if absent(ret) {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		for _, c := range found {
			info, ret := c.GetInfo()
			if ret != nvml.SUCCESS {
				return nil, ret
			}
			if !slices.ContainsFunc(out, func(o foundCompute) bool { return o.info.Id == info.Id }) {
				out = append(out, foundCompute{c, info, p.Slices})
			}
		}
	}
	slices.SortFunc(out, func(a, b foundCompute) int { return cmp.Compare(a.info.Id, b.info.Id) })
	return out, nvml.SUCCESS
}

// computeProfiles reads the compute profiles of an existing GPU instance, once for each GPU-instance profile of the
// device. The vendor's table has two numbers for seven slices, of which a board supports one.
func (d *Driver) computeProfiles(v *device, gi nvml.GpuInstance, profile uint32) ([]computeProfile, nvml.Return) {
	if known, ok := v.compute[profile]; ok {
		return known, nvml.SUCCESS
	}
	var out []computeProfile
	for enum := range maxEnum {
		info, ret := gi.GetComputeInstanceProfileInfo(enum, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break
		}
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		if slices.ContainsFunc(out, func(q computeProfile) bool { return q.ID == info.Id }) {
			continue
		}
		out = append(out, computeProfile{
			ComputeProfile: gpu.ComputeProfile{ID: info.Id, Slices: info.SliceCount, Max: info.InstanceCount},
			info:           info,
		})
	}
	if v.compute == nil {
		v.compute = make(map[uint32][]computeProfile)
	}
	v.compute[profile] = out
	return out, nvml.SUCCESS
}

// migDevice finds the MIG device of a compute instance. The instance's information contains the device; where this is the
// GPU itself, the MIG devices of the GPU are searched. The handle is nil when neither way finds it.
func (d *Driver) migDevice(v *device, gi uint32, info nvml.ComputeInstanceInfo) (nvml.Device, gpu.UUID, nvml.Return) {
	if !v.walk && rawHandle(info.Device) != nil {
		id, ret := info.Device.GetUUID()
		if ret == nvml.SUCCESS && strings.HasPrefix(id, "MIG-") {
			return info.Device, gpu.UUID(id), ret
		}
		if ret != nvml.SUCCESS && ret != nvml.ERROR_INVALID_ARGUMENT && !absent(ret) {
			return nil, "", ret
		}
		v.walk = true
	}
	if !d.symbols.has(migWalk) {
		return nil, "", nvml.SUCCESS
	}
	n, ret := v.handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, "", ret
	}
	for i := range n {
		h, ret := v.handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // indices have gaps
		}
		if ret != nvml.SUCCESS {
			return nil, "", ret
		}
		g, ret := h.GetGpuInstanceId()
		if ret != nvml.SUCCESS || uint32(g) != gi {
			continue
		}
		c, ret := h.GetComputeInstanceId()
		if ret != nvml.SUCCESS || uint32(c) != info.Id {
			continue
		}
		id, ret := h.GetUUID()
		return h, gpu.UUID(id), ret
	}
	return nil, "", nvml.SUCCESS
}
