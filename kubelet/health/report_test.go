package health_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/health"
	"github.com/gpushare/gpushare/kubelet/publish"
)

const half = "gpu-5f0b3c1a-mig-3g-40gb-"

// carved is a node with one GPU that has instances on demand: two of 3g.40gb.
func carved(state string, closures ...api.Closure) *publish.Node {
	const id = "GPU-5f0b3c1a-6a1b-8f2e-9d00-0c1d2e3f4a5b"
	at := []api.MIGPlacement{{Start: 0, Size: 4}, {Start: 4, Size: 4}}
	g := api.GPUStatus{
		UUID: id, Mode: api.ModeMIG, State: state, Reason: "why", MIG: &api.MIGStatus{Enabled: true, Dynamic: true}, Closures: closures,
	}
	return &publish.Node{
		Status: &api.Status{
			Node: api.NodeStatus{Enforce: "on"}, GPUs: []api.GPUStatus{g},
			Tenants: []api.TenantStatus{{Name: "kubernetes", Grants: []api.GrantStatus{{Name: "train", GPUs: []string{id}}}}},
		},
		MIG: &api.MIGList{GPUs: []api.MIGDevice{{
			UUID: id, Width: 8, Profiles: []api.MIGProfile{{ID: 9, Name: "3g.40gb", Slices: 3, Max: 2, Placements: at}},
		}}},
		Tenant: &api.TenantSpec{Name: "kubernetes", Grants: []api.GrantSpec{{Name: "train", MIG: "3g.40gb"}}},
	}
}

// Each device has the health of its GPU, or of its instance, as long as that was read lately.
func TestHealth(t *testing.T) {
	t.Parallel()
	const healthy, unhealthy, unknown = kubeletplugin.HealthStatusHealthy, kubeletplugin.HealthStatusUnhealthy, kubeletplugin.HealthStatusUnknown
	second := &api.MIGPlacement{Start: 4, Size: 4}
	for name, c := range map[string]struct {
		n             *publish.Node
		age           time.Duration
		first, second kubeletplugin.HealthStatus
		says          string // of the second
	}{
		"in order":                       {carved("ok"), time.Second, healthy, healthy, ""},
		"closed by an administrator":     {carved("cordoned", api.Closure{Kind: "cordoned"}), 0, healthy, healthy, ""},
		"lost":                           {carved("lost", api.Closure{Kind: "unanswered"}), 0, unhealthy, unhealthy, "GPU 0 is lost: why"},
		"one call has failed":            {carved("unreadable", api.Closure{Kind: "unanswered"}), 0, unknown, unknown, "GPU 0 is unreadable: why"},
		"MPS of all":                     {carved("mps-down", api.Closure{Kind: "mps-down"}), 0, unhealthy, unhealthy, "GPU 0 is mps-down"},
		"MPS of the second":              {carved("mps-down", api.Closure{Kind: "mps-down", Instance: second, Reason: "x"}), 0, healthy, unhealthy, "is mps-down: x"},
		"gpushared has not answered":     {carved("ok"), health.Fresh + time.Second, unknown, unknown, "gpushared has not answered for 21 s"},
		"gpushared answered a while ago": {carved("ok"), health.Fresh, healthy, healthy, ""},
	} {
		r := health.Report(c.n, "node1", c.age)
		if len(r.Devices) != 2 {
			t.Fatalf("%s: there are %d devices", name, len(r.Devices))
		}
		for _, d := range r.Devices {
			want := map[string]kubeletplugin.HealthStatus{half + "0": c.first, half + "4": c.second}[d.DeviceName]
			if d.Health != want || d.DeviceName == half+"4" && !strings.Contains(d.Message, c.says) {
				t.Errorf("%s: %s is %v: %q, want %v: %q", name, d.DeviceName, d.Health, d.Message, want, c.says)
			}
		}
	}
}
