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
	// Fresh is how old a reading may be that says how a device is: gpushared is read each 10 s.
	Fresh = 20 * time.Second
)

// unhealthy are the states in which programs on a GPU cannot be relied on. A GPU that an administrator closed is as good as before.
var unhealthy = map[string]bool{"unhealthy": true, "lost": true, "missing": true, "no-driver": true, "mismatch": true, "mps-down": true}

// unknown are the states in which the GPU does not say how it is.
var unknown = map[string]bool{"stuck": true, "unreadable": true, "parked": true}

// Report is the health of all devices, also of those that are not published: a claim may have one. age is how long ago the node was read.
// The kubelet believes each report from when it comes, so one of a reading that is old says that nothing is known.
func Report(n *publish.Node, pool string, age time.Duration) kubeletplugin.DeviceHealthReport {
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
		if d.Health, d.Message = of(&n.Status.GPUs[j], o); age > Fresh {
			d.Health, d.Message = kubeletplugin.HealthStatusUnknown, fmt.Sprintf("gpushared has not answered for %d s", int(age.Seconds()))
		}
		out.Devices = append(out.Devices, d)
	}
	return out
}

// of is the health of a device of a GPU, and why it is so.
func of(g *api.GPUStatus, o *publish.Offer) (kubeletplugin.HealthStatus, string) {
	for i := range g.Closures {
		c := &g.Closures[i]
		if c.Instance == nil || o.Start == nil || *c.Instance != o.Placement() || !unhealthy[c.Kind] {
			continue
		}
		why := fmt.Sprintf("instance %s of %s is %s: %s", o.Profile(), publish.Called(g), c.Kind, c.Reason)
		return kubeletplugin.HealthStatusUnhealthy, why
	}
	switch {
	case g.State == "mps-down" && ofInstances(g):
		return kubeletplugin.HealthStatusHealthy, ""
	case unhealthy[g.State]:
		return kubeletplugin.HealthStatusUnhealthy, reason(g)
	case unknown[g.State]:
		return kubeletplugin.HealthStatusUnknown, reason(g)
	}
	return kubeletplugin.HealthStatusHealthy, ""
}

// ofInstances reports whether MPS is down in instances alone: then that is the state of the GPU too.
func ofInstances(g *api.GPUStatus) bool {
	inOne := func(c api.Closure) bool { return c.Kind == "mps-down" && c.Instance != nil }
	ofAll := func(c api.Closure) bool { return c.Kind == "mps-down" && c.Instance == nil }
	return slices.ContainsFunc(g.Closures, inOne) && !slices.ContainsFunc(g.Closures, ofAll)
}

func reason(g *api.GPUStatus) string {
	return strings.TrimSuffix(fmt.Sprintf("%s is %s: %s", publish.Called(g), g.State, g.Reason), ": ")
}
