package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// Timeout is for how long the kubelet believes a report; Interval is how often one is sent at least.
const (
	Timeout  = 30 * time.Second
	Interval = 10 * time.Second
)

// unhealthy are the states in which programs on a GPU cannot be relied on. A GPU that an administrator closed is as good as before.
var unhealthy = map[string]bool{"unhealthy": true, "lost": true, "missing": true, "no-driver": true, "mismatch": true, "mps-down": true}

// unknown are the states in which the GPU does not say how it is.
var unknown = map[string]bool{"stuck": true, "parked": true}

// Report is the health of all devices, also of those that are not published: a claim may have one.
func Report(n *publish.Node, pool string) kubeletplugin.DeviceHealthReport {
	var out kubeletplugin.DeviceHealthReport
	offers := publish.Offers(n)
	for i := range offers {
		o := &offers[i]
		j := slices.IndexFunc(n.Status.GPUs, func(g api.GPUStatus) bool { return g.UUID == o.GPU })
		d := kubeletplugin.DeviceHealth{
			PoolName:           pool,
			DeviceName:         o.Name,
			LastUpdated:        n.Status.At,
			HealthCheckTimeout: Timeout,
		}
		d.Health, d.Message = of(&n.Status.GPUs[j])
		out.Devices = append(out.Devices, d)
	}
	return out
}

// of is the health of a GPU, and why it is so.
func of(g *api.GPUStatus) (kubeletplugin.HealthStatus, string) {
	switch {
	case unhealthy[g.State]:
		return kubeletplugin.HealthStatusUnhealthy, reason(g)
	case unknown[g.State]:
		return kubeletplugin.HealthStatusUnknown, reason(g)
	}
	return kubeletplugin.HealthStatusHealthy, ""
}

func reason(g *api.GPUStatus) string {
	return strings.TrimSuffix(fmt.Sprintf("%s is %s: %s", publish.Called(g), g.State, g.Reason), ": ")
}
