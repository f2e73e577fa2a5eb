package status

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// noGPUs is a driver without GPUs.
type noGPUs struct{ gpu.Driver }

func (noGPUs) Node(context.Context) (gpu.NodeInfo, error) { return gpu.NodeInfo{}, nil }

// Why all devices are open is reported as it was recorded, whatever the text of the missing rules says.
func TestWhyDevicesAreOpen(t *testing.T) {
	st, _, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() }) // It is read only.
	root, port := t.TempDir(), cgroup.NewProcesses("a test")
	of, hosts := state.NewState(st, false), &isolation.HostCache{Root: root}
	observer := &observe.Observer{Driver: noGPUs{}, Slices: port, HostRoot: root, Now: time.Now}
	observer.Observe(t.Context())
	of.SetDesired(&state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}}})
	r := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	v := &Viewer{Reporter: r, State: of, Observer: observer, Policy: &devicepolicy.Policy{
		Reporter: r, State: of, Observer: observer, Hosts: hosts, Port: port,
	}}
	for _, c := range []struct {
		name      string
		isolation api.IsolationStatus
		why       string
	}{
		{"recorded", api.IsolationStatus{DevicesReason: "not on cgroupfs", NotEnforced: []string{"device rules: in other words"}}, "not on cgroupfs"},
		{"by an older daemon", api.IsolationStatus{NotEnforced: []string{"device rules: in other words"}}, "it can open every device that it could open before"},
	} {
		if got := v.explainDevices(&lease.Lease{ID: "red-1", Isolation: c.isolation}); got.Reason != c.why || got.Enforced {
			t.Errorf("%s: %+v, want why %q", c.name, got, c.why)
		}
	}
}

// What only the environment of a process asks of the MPS server is advisory, wherever it is shown.
func TestMPSSharesAreAdvisory(t *testing.T) {
	memory := api.Bytes(16 << 30)
	g := api.GrantSpec{Name: "serve", MPS: &api.ShareSpec{Share: 30, GPUMemory: &memory}}
	if got := grantText(&g); got != "30% of the threads (advisory), 16 GiB" {
		t.Errorf("the grant: %s", got)
	}
	l := lease.Lease{ID: "red-serve-1", Terms: lease.Grant{Tenant: "red", Spec: g}}
	w := l.Wire()
	if !w.Share.Advisory || w.Share.Enforced {
		t.Errorf("the share of the lease: %+v", w.Share)
	}
	v := &Viewer{}
	for _, origin := range []string{lease.OriginRun, lease.OriginAttached} {
		l.Origin = origin
		if r := v.explainTime(&l, &w); r.Enforced || r.Advisory != (origin == lease.OriginRun) || r.Reason == "" {
			t.Errorf("%s: %+v", origin, r)
		}
	}
	for policy, advisory := range map[quota.OverusePolicy]bool{quota.OveruseNotify: true, quota.OveruseKill: false} {
		c := quota.ChooseMemoryBackend(quota.MemoryBackendInput{Enforcing: true, MPS: true, Overuse: policy})
		if c.Advisory() != advisory || c.Enforced == advisory || !strings.Contains(c.Reason, "advisory: each process asks") {
			t.Errorf("overuse %v: %+v", policy, c)
		}
	}
}
