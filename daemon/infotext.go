package daemon

import "github.com/gpushare/gpushare/cgroup"

// adapterText names an adapter with its detail.
func adapterText(i cgroup.Info) string {
	if i.Detail == "" {
		return i.Adapter
	}
	return i.Adapter + " (" + i.Detail + ")"
}
