package gpusim

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// ComputeReports is what the driver reports of a compute instance: how it can be found again, and created again where it was.
type ComputeReports string

// The readings. The first version of nvmlComputeInstanceInfo_t has no placement, and its device is the GPU itself on some drivers.
const (
	ComputePlacements ComputeReports = ""      // its placement and its UUID
	ComputeUUIDs      ComputeReports = "uuids" // its UUID
	ComputeNothing    ComputeReports = "none"  // neither, although the library has the functions
	// ComputeLacking is neither, because the library lacks the functions. It differs for clients of Node.Driver alone: what a
	// library lacks is otherwise in its symbols.
	ComputeLacking ComputeReports = "lacking"
)

// anonymous reports whether compute instances have no UUID.
func (r ComputeReports) anonymous() bool { return r == ComputeNothing || r == ComputeLacking }

// reportedLocked is the instance as the driver of this node reports it.
func (gi *instance) reportedLocked() gpu.Instance {
	out, reports := gi.portLocked(), gi.dev.node.cfg.ComputeReports
	for i := range out.Compute {
		c := &out.Compute[i]
		if reports != ComputePlacements {
			c.Slices, c.Placement = c.Placement.Size, gpu.Placement{}
		}
		if reports.anonymous() {
			c.UUID = ""
		}
	}
	return out
}

// missingMIG is what a library lacks that reports neither placements nor UUIDs.
func (r ComputeReports) missingMIG(library string) *gpu.MissingMIG {
	if r != ComputeLacking {
		return nil
	}
	return &gpu.MissingMIG{
		Library: library, Placements: []string{"nvmlComputeInstanceGetInfo_v2"}, Device: []string{"nvmlDeviceGetMigDeviceHandleByIndex"},
		Place: []string{"nvmlGpuInstanceCreateComputeInstanceWithPlacement"},
	}
}

// requestedAt is the placement that a request names, by its UUID where the driver reports no placements; nil: any.
func (gi *instance) requestedAt(c gpu.NewCompute) *gpu.Placement {
	if c.Placement != nil || c.UUID == "" {
		return c.Placement
	}
	starts := computeStarts(gi.profile.Slices, c.Slices)
	if i := slices.IndexFunc(starts, func(s uint32) bool { return migUUID(gi.dev.uuid, gi.id, s) == c.UUID }); i >= 0 {
		return &gpu.Placement{Start: starts[i], Size: c.Slices}
	}
	return nil
}
