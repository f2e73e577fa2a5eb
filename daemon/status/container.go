package status

import (
	"fmt"
	"path"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/isolation"
)

// containerUse returns how a container of a grant is started on this host; nil when none can be started now.
func (v *Viewer) containerUse(slices []cgroup.SliceState, k state.GrantKey) *api.ContainerUse {
	if !v.Policy.CDI.Offers(k) {
		return nil
	}
	for _, s := range slices {
		if s.Name != (cgroup.SliceName{Tenant: k.Tenant, Grant: k.Grant}) || s.Path == "" {
			continue
		}
		u := &api.ContainerUse{Device: isolation.CDIKind + "=" + isolation.CDIDevice(k.Tenant, k.Grant), CgroupParent: path.Base(s.Path)}
		podman := "podman run"
		if v.Port.Info().Driver != cgroup.DriverSystemd {
			podman, u.CgroupParent = "podman --cgroup-manager=cgroupfs run", s.Path
		}
		u.Command = fmt.Sprintf("%s --cgroup-parent=%s --device=%s IMAGE", podman, u.CgroupParent, u.Device)
		return u
	}
	return nil
}
