//go:build cgo

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// maxEnum bounds the loop over profile numbers. The library normally ends it.
const maxEnum = 128

// giProfile is one GPU-instance profile as the device reports it.
type giProfile struct {
	gpu.Profile
	enum int // the profile number of the call, which is not the id
	info nvml.GpuInstanceProfileInfo
}

// computeProfile is one compute-instance profile as an existing GPU instance reports it.
type computeProfile struct {
	gpu.ComputeProfile
	info nvml.ComputeInstanceProfileInfo
}

// Profiles implements gpu.Driver.
func (d *Driver) Profiles(ctx context.Context, id gpu.UUID) (gpu.Profiles, error) {
	const op = "read the MIG profiles"
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return gpu.Profiles{}, err
	}
	defer v.mu.Unlock()
	state, ret := d.migState(v.handle)
	if ret != nvml.SUCCESS {
		return gpu.Profiles{}, v.failed(op, ret)
	}
	if err := d.missing.CanRead(); err != nil {
		return gpu.Profiles{}, refuse(op, id, err)
	}
	if !state.Capable {
		return gpu.Profiles{}, refuse(op, id, gpu.ErrNotSupported)
	}
	known, ret := d.giProfiles(v)
	if ret != nvml.SUCCESS {
		return gpu.Profiles{}, v.failed(op, ret)
	}
	if len(known) == 0 {
		return gpu.Profiles{}, refuse(op, id, gpu.ErrNotSupported) // the driver reports profiles only with MIG mode on, and it is off
	}
	if state.Current {
		// Existing instances report their compute profiles.
		if _, _, ret := d.instances(v); ret != nvml.SUCCESS {
			return gpu.Profiles{}, v.failed(op, ret)
		}
	}
	var out gpu.Profiles
	for _, p := range known {
		places, ret := v.handle.GetGpuInstancePossiblePlacements(&p.info)
		if ret != nvml.SUCCESS {
			return gpu.Profiles{}, v.failed(op, ret)
		}
		for _, at := range places {
			out.Width = max(out.Width, at.Start+at.Size)
			p.Placements = append(p.Placements, gpu.Placement{Start: at.Start, Size: at.Size})
		}
		slices.SortFunc(p.Placements, func(a, b gpu.Placement) int { return cmp.Compare(a.Start, b.Start) })
		for _, c := range v.compute[p.ID] {
			p.Compute = append(p.Compute, c.ComputeProfile)
		}
		out.GI = append(out.GI, p.Profile)
	}
	slices.SortFunc(out.GI, func(a, b gpu.Profile) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// giProfiles reads the GPU-instance profiles once: by number from 0 until the library returns INVALID_ARGUMENT. Newer
// libraries have more numbers. NOT_SUPPORTED means that this device lacks the profile.
func (d *Driver) giProfiles(v *device) ([]giProfile, nvml.Return) {
	if v.profiles != nil {
		return v.profiles, nvml.SUCCESS
	}
	board, ret := d.memory(v.handle)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var out []giProfile
	for enum := range maxEnum {
		p, ret := d.profileInfo(v, enum)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break
		}
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		if slices.ContainsFunc(out, func(q giProfile) bool { return q.ID == p.ID }) {
			continue
		}
		p.enum = enum
		p.Name, p.Attributes = nameProfile(enum, p, board.Total)
		out = append(out, p)
	}
	v.profiles = out // nil when the driver reports profiles only with MIG mode on
	return out, nvml.SUCCESS
}

// profileInfo reads one profile in the newest version of the call that the library supports: the second version has the
// name, the third the capabilities. Libraries return the same code for an unknown version and an unknown number, so all
// versions are tried until one succeeds.
func (d *Driver) profileInfo(v *device, enum int) (giProfile, nvml.Return) {
	versions := []int{3, 2, 1}
	if v.infoVersion != 0 {
		versions = []int{v.infoVersion}
	}
	last := nvml.ERROR_NOT_SUPPORTED
	for _, n := range versions {
		if n > 1 && !d.symbols.has(profileNames) || n == 1 && d.symbols.at["nvmlDeviceGetGpuInstanceProfileInfo"] == nil {
			continue
		}
		var p giProfile
		switch n {
		case 3:
			var i nvml.GpuInstanceProfileInfo_v3
			i, last = v.handle.GetGpuInstanceProfileInfoV(enum).V3()
			p = fromV3(i)
		case 2:
			var i nvml.GpuInstanceProfileInfo_v2
			i, last = v.handle.GetGpuInstanceProfileInfoV(enum).V2()
			p = fromV2(i)
		case 1:
			var i nvml.GpuInstanceProfileInfo
			i, last = v.handle.GetGpuInstanceProfileInfo(enum)
			p = fromV1(i)
		}
		if last == nvml.SUCCESS {
			v.infoVersion = n
			return p, last
		}
	}
	if last == nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		last = nvml.ERROR_INVALID_ARGUMENT
	}
	return giProfile{}, last
}

func fromV1(i nvml.GpuInstanceProfileInfo) giProfile {
	return giProfile{info: i, Profile: gpu.Profile{
		ID: i.Id, Slices: i.SliceCount, Memory: i.MemorySizeMB << 20, Max: i.InstanceCount, SMs: i.MultiprocessorCount,
	}}
}

func fromV2(i nvml.GpuInstanceProfileInfo_v2) giProfile {
	p := fromV1(nvml.GpuInstanceProfileInfo{
		Id: i.Id, SliceCount: i.SliceCount, InstanceCount: i.InstanceCount, MultiprocessorCount: i.MultiprocessorCount,
		MemorySizeMB: i.MemorySizeMB,
	})
	p.Name = text(i.Name[:])
	return p
}

func fromV3(i nvml.GpuInstanceProfileInfo_v3) giProfile {
	p := fromV1(nvml.GpuInstanceProfileInfo{
		Id: i.Id, SliceCount: i.SliceCount, InstanceCount: i.InstanceCount, MultiprocessorCount: i.MultiprocessorCount,
		MemorySizeMB: i.MemorySizeMB,
	})
	p.Name = text(i.Name[:])
	if i.Capabilities&nvml.GPU_INSTANCE_PROFILE_CAPS_GFX != 0 {
		p.Attributes = []string{"gfx"}
	}
	return p
}

// text converts a C string.
func text(s []int8) string {
	var b strings.Builder
	for _, c := range s {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// nameProfile returns a profile's name and attributes. The attributes follow from the number if it is known, else from
// the name. If the library does not report a name, it is composed.
func nameProfile(enum int, p giProfile, board uint64) (name string, attributes []string) {
	name = strings.TrimPrefix(p.Name, "MIG ")
	attributes, known := enumAttributes(enum)
	if !known {
		attributes = append(nameAttributes(name), p.Attributes...)
	}
	slices.Sort(attributes)
	attributes = slices.Compact(attributes)
	if len(attributes) == 0 {
		attributes = nil
	}
	if name == "" {
		name = composeName(p.Slices, p.Memory, board, attributes)
	}
	return name, attributes
}

// enumAttributes returns the attributes of a profile's number (NVML_GPU_INSTANCE_PROFILE_… in nvml.h).
func enumAttributes(enum int) (attributes []string, known bool) {
	switch enum {
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:
		return []string{"me"}, true
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX,
		nvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:
		return []string{"gfx"}, true
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:
		return []string{"-me"}, true
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME:
		return []string{"me.all"}, true
	}
	return nil, enum < nvml.GPU_INSTANCE_PROFILE_COUNT
}

// nameAttributes reads the attributes at the end of a name such as "1g.24gb+me.all" or "2g.48gb-me".
func nameAttributes(name string) []string {
	if rest, ok := strings.CutSuffix(name, "-me"); ok {
		return append(nameAttributes(rest), "-me")
	}
	_, list, ok := strings.Cut(name, "+")
	if !ok {
		return nil
	}
	return strings.FieldsFunc(list, func(r rune) bool { return r == '+' || r == ',' })
}

// composeName composes the name that the vendor's tools print: the share of the board's memory is rounded up to eighths,
// and that share of the board's size in GiB to the nearest integer.
func composeName(slices uint32, memory, board uint64, attributes []string) string {
	const gib = 1 << 30
	size := memory / gib
	if board > 0 {
		eighths := (memory*8 + board - 1) / board
		whole := (board + gib - 1) / gib
		size = (eighths*whole + 4) / 8
	}
	name := fmt.Sprintf("%dg.%dgb", slices, size)
	for _, a := range attributes {
		if strings.HasPrefix(a, "-") {
			name += a
		} else {
			name += "+" + a
		}
	}
	return name
}
