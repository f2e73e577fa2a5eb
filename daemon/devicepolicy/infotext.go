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
