package status

import (
	"context"
	"log/slog"
	"slices"
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
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/quota"
)

// noGPUs is a driver without GPUs.
type noGPUs struct{ gpu.Driver }

func (noGPUs) Node(context.Context) (gpu.NodeInfo, error) { return gpu.NodeInfo{}, nil }

// Why all devices are open is reported as it was recorded, whatever the text of the missing rules says.
func TestWhyDevicesAreOpen(t *testing.T) {
	st := storetest.Open(t)
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

// The defaults of the control daemon that were read back are enforced for each client, and never called a limit of the grant.
func TestDefaultsOfMPSArePerClient(t *testing.T) {
	l := lease.Lease{
		ID:    "red-serve-1",
		Terms: lease.Grant{Tenant: "red", Spec: api.GrantSpec{Name: "serve", MPS: &api.ShareSpec{Share: 30}}},
		Place: lease.Place{GPUs: []gpu.UUID{observetest.One}},
	}
	for _, c := range []struct {
		name     string
		state    *mps.State
		want     []string
		enforced bool
	}{
		{"none was found", nil, nil, false},
		{"no defaults", &mps.State{Phase: mps.Running, Settings: &mps.Settings{}}, nil, false},
		{"read back", &mps.State{Phase: mps.Running, Settings: &mps.Settings{Threads: 50, Memory: 8 << 30}}, []string{"threads per client", "GPU memory per client"}, true},
		{"a server keeps its own", &mps.State{Phase: mps.Running, Pending: "server 5 has 30%", Settings: &mps.Settings{Threads: 50}}, []string{"threads per client"}, false},
		{"each client may change it", &mps.State{Phase: mps.Running, Program: mps.Release{Branch: 535}, Settings: &mps.Settings{Threads: 50}}, []string{"threads per client"}, false},
		{"changed from outside", &mps.State{Phase: mps.Running, Reason: "its default is 100", Drift: true, Settings: &mps.Settings{Threads: 50}}, []string{"threads per client"}, false},
		{"it does not answer", &mps.State{Phase: mps.Unresponsive, Reason: "no greeting", Settings: &mps.Settings{Memory: 8 << 30}}, []string{"GPU memory per client"}, false},
	} {
		g := observetest.Device(false)
		if g.MPS = c.state; g.MPS != nil && g.MPS.Program == (mps.Release{}) {
			g.MPS.Program = mps.Release{Branch: 580}
		}
		var got []string
		for _, r := range clientRules(&l, &g) {
			got = append(got, r.What)
			if r.Enforced != c.enforced || r.Enforced && !strings.Contains(r.By, "not for the processes of the lease together") ||
				!r.Enforced && r.Reason == "" {
				t.Errorf("%s: %+v", c.name, r)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// What a grant with latency: low gets is in the text of the grant and of the share.
func TestLatencyIsExplained(t *testing.T) {
	g := api.GrantSpec{Name: "chat", Timeslice: &api.ShareSpec{Share: 30}, Latency: api.LatencyLow}
	if got, want := grantText(&g, ""), "30% of the time, latency: low"; got != want {
		t.Errorf("the grant: %s", got)
	}
	l := lease.Lease{ID: "red-chat-1", Terms: lease.Grant{Tenant: "red", Spec: g}}
	w := l.Wire()
	if got, want := shareText(&w), "30%, latency: low"; got != want {
		t.Errorf("the share: %s", got)
	}
}

// What only the environment of a process asks of the MPS server is advisory, wherever it is shown.
func TestMPSSharesAreAdvisory(t *testing.T) {
	memory := api.Bytes(16 << 30)
	g := api.GrantSpec{Name: "serve", MPS: &api.ShareSpec{Share: 30, GPUMemory: &memory}}
	if got := grantText(&g, ""); got != "30% of the threads (advisory), 16 GiB" {
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
