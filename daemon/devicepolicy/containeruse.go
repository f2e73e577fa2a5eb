package devicepolicy

import (
	"fmt"
	"path"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/isolation"
)

// LeaseVariable is the variable with the lease of a container, in the environment that its CDI device gives.
const LeaseVariable = isolation.LeaseVariable

// ContainerUse returns the options of a container runtime on this host for a CDI device below the slice of a grant; nil if the
// slice is not there.
func (pol *Policy) ContainerUse(slices []cgroup.SliceState, grant cgroup.SliceName, device string) *api.ContainerUse {
	for _, s := range slices {
		if s.Name != grant || s.Path == "" {
			continue
		}
		u := &api.ContainerUse{Device: isolation.CDIKind + "=" + device, CgroupParent: path.Base(s.Path)}
		podman := "podman run"
		if pol.Port.Info().Driver != cgroup.DriverSystemd {
			podman, u.CgroupParent = "podman --cgroup-manager=cgroupfs run", s.Path
		}
		u.Command = fmt.Sprintf("%s --cgroup-parent=%s --device=%s IMAGE", podman, u.CgroupParent, u.Device)
		return u
	}
	return nil
}
