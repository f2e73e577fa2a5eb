package devicepolicy

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// The rules of a running lease follow the majors and modules of the host, and keep what cannot be known now.
func TestRulesOfARunningLeaseFollowTheHost(t *testing.T) {
	st := storetest.Open(t)
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/driver/nvidia-caps/mig-minors", "gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n")
	at := gpu.Placement{Size: 4}
	snapshot := gpu.Snapshot{
		Identity: gpu.Identity{UUID: "GPU-a"}, Memory: gpu.Memory{Total: 1 << 30}, MIG: gpu.MIGState{Current: true},
		Instances: []gpu.Instance{{ID: 1, Placement: at, Compute: []gpu.ComputeInstance{{}}}},
	}
	l := &lease.Lease{ID: "l", Terms: lease.Grant{Tenant: "red"}, Place: lease.Place{GPUs: []gpu.UUID{"GPU-a"}, Instance: &at}}
	red := &state.Desired{Spec: &api.Spec{Tenants: []api.TenantSpec{{Name: "red"}}}}
	rdma := cgroup.DeviceRule{Type: 'c', Major: 231, Minor: 192, Access: "rw", Name: "/dev/infiniband/uverbs0"}
	had := []cgroup.DeviceRule{{Type: 'c', Major: 195, Access: "rw"}, rdma}
	for _, tt := range []struct {
		name    string
		devices string // of /proc/devices
		node    observe.Node
		spec    *state.Desired
		want    string
	}{
		{name: "as at its start", devices: "237 nvidia-caps\n509 nvidia-uvm\n", spec: red, want: "195:0 195:255 237:12 237:13 509:0"},
		{name: "unified memory is not loaded", devices: "237 nvidia-caps\n", spec: red, want: "195:0 195:255 237:12 237:13"},
		{name: "other majors", devices: "236 nvidia-caps\n510 nvidia-uvm\n", spec: red, want: "195:0 195:255 236:12 236:13 510:0"},
		{name: "the driver does not answer", node: observe.Node{DriverErr: gpu.ErrTimeout}, spec: red, want: "195:0 231:192"},
		{name: "the GPU was never read", node: observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: snapshot.Identity}, Err: gpu.ErrTimeout}}}, spec: red, want: "195:0 231:192"},
		{name: "the instance was removed", node: observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: snapshot.Identity, Memory: snapshot.Memory}}}}, spec: red, want: "195:0 231:192"},
		{name: "the tenant was removed", devices: "237 nvidia-caps\n", spec: &state.Desired{Spec: &api.Spec{}}, want: "195:0 195:255 231:192 237:12 237:13"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write("proc/devices", "Character devices:\n195 nvidia\n"+tt.devices+"\nBlock devices:\n")
			pol := &Policy{
				State:    state.NewState(st, false),
				HostRoot: root,
				Hosts:    &isolation.HostCache{Root: root},
				Observer: &observe.Observer{HostRoot: root},
			}
			pol.State.SetDesired(tt.spec)
			node := tt.node
			if node.GPUs == nil {
				node.GPUs = []observe.GPU{{Snapshot: snapshot}}
			}
			rules, err := pol.ScopeRules(&node, l, had)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, r := range rules {
				got += fmt.Sprintf(" %d:%d", r.Major, r.Minor)
			}
			if got != " "+tt.want {
				t.Errorf("the rules are%s, want %s", got, tt.want)
			}
		})
	}
}
