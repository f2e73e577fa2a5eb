package devicepolicy

import (
	"github.com/gpushare/gpushare/cgroup"
)

// AdapterText names an adapter with its detail.
func AdapterText(i cgroup.Info) string {
	if i.Detail == "" {
		return i.Adapter
	}
	return i.Adapter + " (" + i.Detail + ")"
}

// WhyNoDeviceRules says why there are no device walls.
func WhyNoDeviceRules(info cgroup.Info) string {
	if info.NoDevices != "" {
		return info.NoDevices
	}
	return "not on " + info.Adapter
}
