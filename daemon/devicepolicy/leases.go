package devicepolicy

import (
	"github.com/gpushare/gpushare/cgroup"
)

// WhyOpen says why there are no device walls.
func WhyOpen(info cgroup.Info) string {
	if info.NoDevices != "" {
		return info.NoDevices
	}
	return "not on " + info.Adapter
}
