package status

import (
	"context"
	"log/slog"
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
