package gpusim

import (
	"fmt"
	"sort"

	"github.com/gpushare/gpushare/gpu"
)

// lastMIGOnlyBranch is the newest branch whose drivers report profiles only while MIG mode is on.
const lastMIGOnlyBranch = 550

// profilesWithoutMIG reports whether profiles can be queried while MIG mode is off.
func (cfg Config) profilesWithoutMIG() bool { return cfg.branch() > lastMIGOnlyBranch }

// giEnums is one more than the largest GPU-instance profile enum of a branch: NVML_GPU_INSTANCE_PROFILE_COUNT of its header.
// Profiles that the branch does not know have no number, so no call finds them.
func (cfg Config) giEnums() uint64 {
	switch {
	case cfg.branch() < 525:
		return 0x8 // without the second revisions: 2g+me and the 1g with double memory
	case cfg.branch() < 575:
		return 0xA // without those for graphics and with all media engines
	}
	return 0x12
}

// profileByID finds a profile that this driver knows; nil without one.
func (g *device) profileByID(id uint32) *Profile {
	if p := g.model.byID(id); p != nil && uint64(p.Enum) < g.node.cfg.giEnums() {
		return p
	}
	return nil
}

// name is the profile name of a compute instance: "1g.5gb", or "1c.3g.20gb" if it uses a part of its GPU instance.
func (ci *compute) name() string {
	if ci.profile.slices == ci.gi.profile.Slices {
		return ci.gi.dev.node.nameLocked(ci.gi.profile)
	}
	return fmt.Sprintf("%dc.%s", ci.profile.slices, ci.gi.dev.node.nameLocked(ci.gi.profile))
}

// sms returns the multiprocessors of a compute instance.
func (ci *compute) sms() uint32 { return ci.gi.profile.computeSMs(ci.profile) }

func (p *Profile) computeSMs(cp computeProfile) uint32 { return p.SMs * cp.slices / p.Slices }

// capabilities is the field of version 3 of the profile: graphics.
func (p *Profile) capabilities() uint64 {
	if p.has("gfx") {
		return 2
	}
	return 0
}

// profiles answers the calls that query profiles.
func (q *call) profiles() (Ret, bool) {
	switch q.name {
	case "DeviceGetGpuInstanceProfileInfo", "DeviceGetGpuInstanceProfileInfoV":
		return q.gpu(func(t target) Ret {
			if ret := t.g.enumerable(); ret != Success {
				return ret
			}
			if q.args[1] >= t.g.node.cfg.giEnums() {
				return InvalidArgument
			}
			return q.profile(t.g.node, t.g.model.byEnum(q.u32(1)))
		}), true
	case "DeviceGetGpuInstanceProfileInfoByIdV":
		return q.gpu(func(t target) Ret {
			if ret := t.g.enumerable(); ret != Success {
				return ret
			}
			return q.profile(t.g.node, t.g.profileByID(q.u32(1)))
		}), true
	case "DeviceGetGpuInstancePossiblePlacements":
		return q.admin(func(t target) Ret {
			if ret := t.g.enumerable(); ret != Success {
				return ret
			}
			p := t.g.profileByID(q.u32(1))
			if p == nil {
				return NotSupported
			}
			for _, at := range p.Placements() {
				q.out.put(uint64(at.Start), uint64(at.Size))
			}
			return Success
		}), true
	case "DeviceGetGpuInstanceRemainingCapacity":
		return q.mig(func(t target) Ret {
			p := t.g.profileByID(q.u32(1))
			if p == nil {
				return NotSupported
			}
			return q.out.put(uint64(t.g.capacityLocked(p)))
		}), true
	case "GpuInstanceGetComputeInstanceProfileInfo", "GpuInstanceGetComputeInstanceProfileInfoV":
		return q.gi(func(t target) Ret {
			if q.args[1] >= computeEnums || q.args[2] != 0 {
				return InvalidArgument
			}
			cp, ok := t.gi.computeProfile(q.u32(1))
			if !ok {
				return NotSupported
			}
			p := t.gi.profile
			q.out.setText("MIG " + (&compute{gi: t.gi, profile: cp}).name())
			return q.out.put(uint64(cp.enum), uint64(cp.slices), uint64(len(computeStarts(p.Slices, cp.slices))),
				uint64(p.computeSMs(cp)), uint64(p.Copy), uint64(p.Decoders), 0, uint64(p.JPEG), uint64(p.OFA), p.capabilities())
		}), true
	case "GpuInstanceGetComputeInstancePossiblePlacements":
		return q.gi(func(t target) Ret {
			cp, ok := t.gi.computeProfile(q.u32(1))
			if !ok {
				return NotSupported
			}
			for _, s := range computeStarts(t.gi.profile.Slices, cp.slices) {
				q.out.put(uint64(s), uint64(cp.slices))
			}
			return Success
		}), true
	case "GpuInstanceGetComputeInstanceRemainingCapacity":
		return q.gi(func(t target) Ret {
			cp, ok := t.gi.computeProfile(q.u32(1))
			if !ok {
				return NotSupported
			}
			return q.out.put(uint64(t.gi.computeCapacityLocked(cp)))
		}), true
	}
	return 0, false
}

// enumerable returns Success if profiles can be queried.
func (g *device) enumerable() Ret {
	if g.model.Grid == 0 || !g.migCurrent && !g.node.cfg.profilesWithoutMIG() {
		return NotSupported
	}
	return Success
}

func (q *call) profile(n *Node, p *Profile) Ret {
	if p == nil {
		return NotSupported
	}
	q.out.setText("MIG " + n.nameLocked(p))
	return q.out.put(uint64(p.ID), 0, uint64(p.Slices), uint64(p.Max), uint64(p.SMs), uint64(p.Copy), uint64(p.Decoders), 0,
		uint64(p.JPEG), uint64(p.OFA), p.MemoryMiB, p.capabilities())
}

// instances answers the calls that create, list and destroy instances.
func (q *call) instances() (Ret, bool) {
	out := q.out
	switch q.name {
	case "DeviceCreateGpuInstance":
		return q.mig(func(t target) Ret { return q.answerInstance(t.g.createGILocked(q.u32(1), nil)) }), true
	case "DeviceCreateGpuInstanceWithPlacement":
		at := gpu.Placement{Start: q.u32(2), Size: q.u32(3)}
		return q.mig(func(t target) Ret { return q.answerInstance(t.g.createGILocked(q.u32(1), &at)) }), true
	case "GpuInstanceDestroy":
		return q.gi(func(t target) Ret { return t.gi.destroyLocked() }), true
	case "DeviceGetGpuInstances":
		return q.mig(func(t target) Ret {
			if t.g.profileByID(q.u32(1)) == nil {
				return NotSupported
			}
			for _, gi := range t.g.sortedLocked() {
				if gi.profile.ID == q.u32(1) {
					out.put(uint64(gi.handle()))
				}
			}
			return Success
		}), true
	case "DeviceGetGpuInstanceById":
		return q.mig(func(t target) Ret {
			if gi := t.g.instances[q.u32(1)]; gi != nil {
				return out.put(uint64(gi.handle()))
			}
			return NotFound
		}), true
	case "GpuInstanceGetInfo":
		return q.gi(func(t target) Ret {
			return out.put(uint64(t.g.handleLocked()), uint64(t.gi.id), uint64(t.gi.profile.ID),
				uint64(t.gi.placement.Start), uint64(t.gi.placement.Size))
		}), true
	case "GpuInstanceCreateComputeInstance":
		return q.gi(func(t target) Ret { return q.answerCompute(t.gi.createCILocked(q.u32(1), nil)) }), true
	case "GpuInstanceCreateComputeInstanceWithPlacement":
		at := gpu.Placement{Start: q.u32(2), Size: q.u32(3)}
		return q.gi(func(t target) Ret { return q.answerCompute(t.gi.createCILocked(q.u32(1), &at)) }), true
	case "ComputeInstanceDestroy":
		return q.ci(func(t target) Ret { return t.ci.destroyLocked() }), true
	case "GpuInstanceGetComputeInstances":
		return q.gi(func(t target) Ret {
			if _, ok := t.gi.computeProfile(q.u32(1)); !ok {
				return NotSupported
			}
			list := t.gi.sortedCompute()
			sort.SliceStable(list, func(i, j int) bool { return list[i].placement.Start < list[j].placement.Start })
			for _, ci := range list {
				if ci.profile.enum == q.u32(1) {
					out.put(uint64(ci.handle()))
				}
			}
			return Success
		}), true
	case "GpuInstanceGetComputeInstanceById":
		return q.gi(func(t target) Ret {
			if ci := t.gi.compute[q.u32(1)]; ci != nil {
				return out.put(uint64(ci.handle()))
			}
			return NotFound
		}), true
	case "ComputeInstanceGetInfo":
		return q.ci(func(t target) Ret {
			device, at := t.ci.device(), t.ci.placement
			if reports := t.g.node.cfg.ComputeReports; reports != ComputePlacements {
				at = gpu.Placement{}
				if reports.anonymous() {
					device = t.g.handleLocked()
				}
			}
			return out.put(
				uint64(device), uint64(t.gi.handle()), uint64(t.ci.id), uint64(t.ci.profile.enum), uint64(at.Start), uint64(at.Size),
			)
		}), true
	}
	return 0, false
}

func (q *call) answerInstance(gi *instance, ret Ret) Ret {
	if ret != Success {
		return ret
	}
	return q.out.put(uint64(gi.handle()))
}

func (q *call) answerCompute(ci *compute, ret Ret) Ret {
	if ret != Success {
		return ret
	}
	return q.out.put(uint64(ci.handle()))
}
