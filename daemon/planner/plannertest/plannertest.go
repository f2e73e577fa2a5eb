// Package plannertest has the use of a node for tests of plans. Only tests import it.
package plannertest

import (
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mps"
)

// NoUsage has no device user, and every instance is managed.
func NoUsage() planner.Usage {
	return planner.Usage{
		Instance: func(gpu.UUID, gpu.Placement) []string { return nil }, GPU: func(gpu.UUID) []string { return nil },
		Managed: func(gpu.UUID, *gpu.Instance) bool { return true }, Process: func(_ *mps.State, pid int) planner.DeviceUser {
			return planner.DeviceUser{PID: pid, Start: 1, Name: "python"}
		},
	}
}

// LeaseAt has one lease, on the instance that begins at a memory slice.
func LeaseAt(start uint32) planner.Usage {
	u := NoUsage()
	u.Instance = func(_ gpu.UUID, p gpu.Placement) []string {
		if p.Start == start {
			return []string{"red-cut-1"}
		}
		return nil
	}
	u.GPU = func(gpu.UUID) []string { return []string{"red-cut-1"} }
	return u
}
