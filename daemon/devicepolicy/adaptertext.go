package devicepolicy

import (
	"github.com/gpushare/gpushare/cgroup"
)

// AdapterText returns the name of an adapter with its detail.
func AdapterText(i cgroup.Info) string {
	if i.Detail == "" {
		return i.Adapter
	}
	return i.Adapter + " (" + i.Detail + ")"
}

// WhyNoDeviceRules returns why device rules cannot be set.
func WhyNoDeviceRules(info cgroup.Info) string {
	if info.NoDevices != "" {
		return info.NoDevices
	}
	return "not on " + info.Adapter
}
