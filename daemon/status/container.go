package status

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// containerUse returns how a container of a grant is started on this host; nil when none can be started now.
func (v *Viewer) containerUse(slices []cgroup.SliceState, k state.GrantKey) *api.ContainerUse {
	if !v.Policy.CDI.Offers(k) {
		return nil
	}
	return v.Policy.ContainerUse(slices, cgroup.SliceName(v.Table.SliceOf(lease.Key(k))), isolation.CDIDevice(k.Tenant, k.Grant))
}
