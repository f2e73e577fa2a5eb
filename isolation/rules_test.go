package isolation

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/text"
)

// capsText is mig-minors as the open kernel module writes it, for some GPUs.
func capsText(gpus int) string {
	var b strings.Builder
	b.WriteString("config 1\nmonitor 2\n")
	for g := range gpus {
		for gi := range uint32(15) {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", g, gi, usual(g, gi, -1))
			for ci := range 8 {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", g, gi, ci, usual(g, gi, ci))
			}
		}
	}
	return b.String()
}

func mustCaps(t testing.TB, text string) Caps {
	t.Helper()
	c, err := ParseCaps(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// machine has two partitioned GPUs on NUMA node 0 and two whole ones on node 1. Index and minor differ on purpose.
func machine(t testing.TB) *Hardware {
	t.Helper()
	h := &Hardware{Host: Host{
		Majors:  map[string]uint32{"nvidia": 195, "nvidia-caps": 236, "nvidia-uvm": 510},
		Caps:    mustCaps(t, capsText(4)),
		CPUs:    map[int]string{0: "0-3", 1: "4-7"},
		Classes: map[string][]cgroup.DeviceRule{"fuse": {{Type: 'c', Major: 10, Minor: 229, Access: "rw", Name: "/dev/fuse"}}},
	}}
	for i := range 4 {
		s := gpu.Snapshot{Identity: gpu.Identity{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, Minor: 3 - i, NUMANode: i / 2}}
		if i < 2 {
			s.MIG = gpu.MIGState{Capable: true, Current: true, Pending: true}
			s.Instances = []gpu.Instance{
				{ID: 2, Placement: gpu.Placement{Start: 0, Size: 4}, Compute: []gpu.ComputeInstance{{ID: 0}}},
				{
					ID:        5,
					Placement: gpu.Placement{Start: 4, Size: 2},
					Compute:   []gpu.ComputeInstance{{ID: 0, UUID: "MIG-5-0"}, {ID: 1, UUID: "MIG-5-1"}},
				},
				{ID: 9, Placement: gpu.Placement{Start: 6, Size: 1}},
			}
		}
		h.GPUs = append(h.GPUs, s)
	}
	return h
}

func whole(i int) Target { return Target{GPU: gpu.UUID(fmt.Sprintf("GPU-%d", i))} }

func slot(i int, start, size uint32) Target {
	return Target{GPU: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Instance: &gpu.Placement{Start: start, Size: size}}
}

// short formats rules as in "nvidia0:rw".
func short(rules []cgroup.DeviceRule) string {
	var out []string
	for _, r := range rules {
		out = append(out, filepath.Base(r.Name)+":"+r.Access)
	}
	return strings.Join(out, " ")
}

func TestRules(t *testing.T) {
	tests := []struct {
		name    string
		change  func(*Hardware)
		targets []Target
		classes []string
		want    string
		missing string
		err     string
	}{
		{name: "nothing", want: ""},
		{name: "a whole GPU, by the minor of its node", targets: []Target{whole(3)}, want: "nvidia0:rw nvidiactl:rw nvidia-uvm:rw"},
		{name: "two", targets: []Target{whole(3), whole(2)}, want: "nvidia0:rw nvidia1:rw nvidiactl:rw nvidia-uvm:rw"},
		{name: "an instance", targets: []Target{slot(0, 0, 4)}, // GPU-0 has minor 3: 3 + 135·3 + 9·2 = 426
			want: "nvidia3:rw nvidiactl:rw nvidia-cap426:r nvidia-cap427:r nvidia-uvm:rw"},
		{name: "an instance with two compute instances", targets: []Target{slot(1, 4, 2)}, // 3 + 135·2 + 9·5 = 318
			want: "nvidia2:rw nvidiactl:rw nvidia-cap318:r nvidia-cap319:r nvidia-cap320:r nvidia-uvm:rw"},
		{
			name:    "one of the two compute instances",
			targets: []Target{{GPU: "GPU-1", Instance: &gpu.Placement{Start: 4, Size: 2}, Compute: "MIG-5-1"}},
			want:    "nvidia2:rw nvidiactl:rw nvidia-cap318:r nvidia-cap320:r nvidia-uvm:rw",
		},
		{
			name:    "a compute instance that was removed",
			targets: []Target{{GPU: "GPU-1", Instance: &gpu.Placement{Start: 4, Size: 2}, Compute: "MIG-gone"}},
			err:     "its compute instance MIG-gone was not found",
		},
		{name: "a class", classes: []string{"fuse"}, want: "fuse:rw"},
		{name: "a class without devices", classes: []string{"rdma"}, missing: "devices of class rdma: none found"},
		{
			name: "no uvm", targets: []Target{whole(3)}, change: func(h *Hardware) { delete(h.Host.Majors, "nvidia-uvm") },
			want: "nvidia0:rw nvidiactl:rw", missing: "/dev/nvidia-uvm: the module nvidia-uvm is not loaded, and CUDA needs it",
		},
		{name: "the whole of a partitioned GPU", targets: []Target{whole(0)}, err: "it is in MIG mode"},
		{name: "an unknown GPU", targets: []Target{whole(9)}, err: "cannot allow GPU GPU-9: not found"},
		{name: "a missing instance", targets: []Target{slot(0, 0, 2)}, err: "the instance at 0 of GPU GPU-0: not found"},
		{name: "an instance without a compute instance", targets: []Target{slot(0, 6, 1)}, err: "it has no compute instance"},
		{
			name:    "a driver without capability devices",
			targets: []Target{slot(0, 0, 4)},
			change:  func(h *Hardware) { delete(h.Host.Majors, "nvidia-caps") },
			err:     "no capability devices",
		},
		{
			name:    "a driver that does not report the minors",
			targets: []Target{slot(0, 0, 4)},
			change:  func(h *Hardware) { h.Host.Caps = nil },
			err:     "does not report the minors",
		},
		{
			name:    "a driver that does not report the minor of one compute instance",
			targets: []Target{slot(1, 4, 2)},
			change:  func(h *Hardware) { delete(h.Host.Caps, "gpu2/gi5/ci1/access") },
			err:     "does not report the minors",
		},
		{
			name:    "a GPU without a node",
			targets: []Target{whole(3)},
			change:  func(h *Hardware) { h.GPUs[3].Identity.Minor = -1 },
			err:     "its device node is unknown",
		},
		{name: "one valid and one invalid target", targets: []Target{whole(3), whole(9)}, err: "GPU-9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := machine(t)
			if tt.change != nil {
				tt.change(h)
			}
			rules, missing, err := Rules(h, tt.targets, tt.classes)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || rules != nil {
					t.Errorf("got %v, %v", rules, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, short(rules)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.missing, strings.Join(missing, "; ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// With any layout, the rules of one instance do not allow another instance, the configuration or monitoring of MIG, or
// another GPU.
func TestRulesKeepInstancesApart(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		h := &Hardware{Host: Host{Majors: map[string]uint32{"nvidia-caps": 236, "nvidia-uvm": 510}, Caps: mustCaps(t, capsText(8))}}
		var all []Target
		minors := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7}).Draw(r, "minors")
		for i := range rapid.IntRange(1, 4).Draw(r, "gpus") {
			s := gpu.Snapshot{
				Identity: gpu.Identity{UUID: gpu.UUID(fmt.Sprint("GPU-", i)), Minor: minors[i]},
				MIG:      gpu.MIGState{Current: true},
			}
			ids := rapid.SliceOfNDistinct(rapid.Uint32Range(0, 14), 1, 7, rapid.ID[uint32]).Draw(r, "ids")
			for j, id := range ids {
				in := gpu.Instance{ID: id, Placement: gpu.Placement{Start: uint32(j), Size: 1}}
				for c := range rapid.Uint32Range(1, 8).Draw(r, "compute") {
					in.Compute = append(in.Compute, gpu.ComputeInstance{ID: c})
				}
				s.Instances = append(s.Instances, in)
				all = append(all, Target{GPU: s.Identity.UUID, Instance: &in.Placement})
			}
			h.GPUs = append(h.GPUs, s)
		}
		caps := map[int]map[uint32]bool{}
		owner := map[uint32]int{}
		for i, target := range all {
			rules, _, err := Rules(h, []Target{target}, nil)
			if err != nil {
				r.Fatal(err)
			}
			caps[i] = map[uint32]bool{}
			gpus := 0
			for _, rule := range rules {
				switch {
				case rule.Major == 236:
					if rule.Minor <= 2 {
						r.Fatalf("%+v opens config or monitor", rule)
					}
					if other, taken := owner[rule.Minor]; taken {
						r.Fatalf("targets %d and %d share %s", other, i, rule.Name)
					}
					if rule.Access != "r" {
						r.Fatalf("%+v may be written", rule)
					}
					owner[rule.Minor], caps[i][rule.Minor] = i, true
				case rule.Major == gpuMajor && rule.Minor != controlMinor:
					gpus++
					if d, _ := h.gpu(target.GPU); rule.Minor != uint32(d.Identity.Minor) {
						r.Fatalf("%+v is another GPU's", rule)
					}
				}
			}
			if gpus != 1 || len(caps[i]) < 2 {
				r.Fatalf("target %d has %d GPUs and %d capabilities", i, gpus, len(caps[i]))
			}
		}
	})
}

func TestCaps(t *testing.T) {
	c := mustCaps(t, capsText(32))
	// The minors that NVIDIA's open kernel module assigns; the last one of 32 GPUs is 4322.
	for name, want := range map[string]uint32{
		"config": 1, "monitor": 2, "gpu0/gi0/access": 3, "gpu0/gi0/ci0/access": 4, "gpu0/gi1/access": 12,
		"gpu1/gi0/access": 138, "gpu31/gi14/ci7/access": 4322,
	} {
		if c[name] != want {
			t.Errorf("%s is %d, not %d", name, c[name], want)
		}
	}
	if n, ok := c.GI(1, 2); !ok || n != 156 {
		t.Errorf("GI(1, 2) = %d, %v", n, ok)
	}
	if n, ok := c.CI(1, 2, 3); !ok || n != 160 {
		t.Errorf("CI(1, 2, 3) = %d, %v", n, ok)
	}
	if _, ok := c.GI(32, 0); ok {
		t.Error("a GPU that does not exist has a capability")
	}
	for name, bad := range map[string]string{
		"no minor": "config", "no number": "config x", "negative": "config -1", "too large": "config 1048576", "three words": "config 1 2",
		"one minor twice": "gpu0/gi0/access 3\ngpu0/gi1/access 3", "one name twice": "gpu0/gi0/access 3\ngpu0/gi0/access 4",
	} {
		if _, err := ParseCaps(bad); err == nil {
			t.Errorf("%s: %q was accepted", name, bad)
		}
	}
}

func TestReadHost(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if h, err := ReadHost(root); err != nil || h.Caps != nil || len(h.Majors) != 0 {
		t.Errorf("an empty host: %+v, %v", h, err)
	}
	write(
		"proc/devices",
		"Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n236 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n259 nvidia-uvm\n  8 sd\n",
	)
	write("proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu0/gi0/access 3\n")
	write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n")
	write("sys/devices/system/node/node1/cpulist", "4-7\n")
	write("dev/fuse", "no device")
	h, err := ReadHost(root)
	if err != nil {
		t.Fatal(err)
	}
	want := Host{
		Majors:  map[string]uint32{"mem": 1, "nvidia": 195, "nvidia-modeset": 195, "nvidia-caps": 236, "nvidia-uvm": 510},
		Caps:    Caps{"config": 1, "monitor": 2, "gpu0/gi0/access": 3},
		CPUs:    map[int]string{0: "0-3,8-11", 1: "4-7"},
		Classes: map[string][]cgroup.DeviceRule{}, DRI: map[string][]cgroup.DeviceRule{},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	write("proc/driver/nvidia-caps/mig-minors", "config\n")
	if h, err := ReadHost(root); err == nil || h.Caps != nil || len(h.Majors) == 0 {
		t.Errorf("a bad file: %+v, %v", h.Caps, err)
	}
}

func TestNodeRule(t *testing.T) {
	rule, ok := nodeRule("/", "/dev/null")
	want := cgroup.DeviceRule{Type: 'c', Major: 1, Minor: 3, Access: "rw", Name: "/dev/null"}
	if !ok || rule != want {
		t.Errorf("got %+v, %v", rule, ok)
	}
	if _, ok := nodeRule("/", "/dev"); ok {
		t.Error("a directory is a device")
	}
}

func TestDesired(t *testing.T) {
	h := machine(t)
	limit := uint64(1 << 30)
	tenants := []Tenant{
		{Name: "vision", Limits: cgroup.Limits{MemoryMax: &limit}, NUMA: "prefer", Classes: []string{"fuse", "rdma"}, Grants: []Grant{
			{
				Name:    "train",
				Targets: []Target{slot(0, 0, 4), slot(0, 6, 1)},
			},
			{Name: "big", Targets: []Target{whole(2), whole(3)}},
			{Name: "none"},
		}},
		{Name: "idle"},
	}
	got, missing := Desired(h, tenants)
	var lines []string
	for _, s := range got {
		if !s.Closed {
			t.Errorf("%s is open", s.Name)
		}
		m := ""
		if s.Limits.MemoryMax != nil {
			m = text.Bytes(*s.Limits.MemoryMax)
		}
		lines = append(lines, fmt.Sprintf("%s [%s] %s: %s", s.Name, s.Limits.CPUs, m, short(s.Devices)))
	}
	want := []string{
		"vision [] 1 GiB: fuse:rwm nvidia0:rwm nvidia1:rwm nvidia3:rwm nvidiactl:rwm nvidia-cap426:rm nvidia-cap427:rm nvidia-uvm:rwm",
		"vision/train [0-3] : fuse:rwm nvidia3:rwm nvidiactl:rwm nvidia-cap426:rm nvidia-cap427:rm nvidia-uvm:rwm",
		"vision/big [4-7] : fuse:rwm nvidia0:rwm nvidia1:rwm nvidiactl:rwm nvidia-uvm:rwm",
		"vision/none [] : fuse:rwm",
		"idle [] : ",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
	wantMissing := []Missing{
		{cgroup.SliceName{Tenant: "vision"}, "devices of class rdma: none found"},
		{cgroup.SliceName{Tenant: "vision", Grant: "train"}, "cannot allow the instance at 6 of GPU GPU-0: it has no compute instance"},
	}
	if diff := cmp.Diff(wantMissing, missing); diff != "" {
		t.Error(diff)
	}
}

func TestCPUsNear(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Hardware)
		ts     []Target
		want   string
		why    bool
	}{
		{"one node", nil, []Target{whole(0), whole(1)}, "0-3", false},
		{"both nodes", nil, []Target{whole(1), whole(2)}, "0-7", false},
		{"no GPU", nil, nil, "", false},
		{"a missing GPU", nil, []Target{whole(9)}, "", false},
		{"a host with one node", func(h *Hardware) { delete(h.Host.CPUs, 1) }, []Target{whole(0)}, "", false},
		{"an unknown node", func(h *Hardware) { h.GPUs[0].Identity.NUMANode = -1 }, []Target{whole(0), whole(2)}, "", true},
		{"a node without CPUs", func(h *Hardware) { h.Host.CPUs[0] = "" }, []Target{whole(0)}, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := machine(t)
			if tt.change != nil {
				tt.change(h)
			}
			if got, why := cpusNear(h, tt.ts); got != tt.want || (why != "") != tt.why {
				t.Errorf("got %q, %q", got, why)
			}
		})
	}
}

func TestMemoryNodes(t *testing.T) {
	h := machine(t)
	id := func(i int) gpu.UUID { return h.GPUs[i].Identity.UUID }
	for _, c := range []struct {
		name   string
		change func()
		ids    []gpu.UUID
		want   string
		why    bool
	}{
		{"one node", nil, []gpu.UUID{id(0), id(1)}, "0", false},
		{"both nodes", nil, []gpu.UUID{id(1), id(2)}, "0-1", false},
		{"a missing GPU", nil, []gpu.UUID{"GPU-9"}, "", true},
		{"an unknown node", func() { h.GPUs[0].Identity.NUMANode = -1 }, []gpu.UUID{id(0)}, "", true},
		{"a host with one node", func() { delete(h.Host.CPUs, 1) }, []gpu.UUID{id(0)}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.change != nil {
				c.change()
			}
			if got, why := MemoryNodes(h, c.ids); got != c.want || (why != "") != c.why {
				t.Errorf("got %q, %q", got, why)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	set, unset := Environment(
		Lease{ID: "vision-dev-3f2k", Tenant: "vision", Grant: "dev", Devices: []gpu.UUID{"GPU-1", "GPU-2"}, Timesliced: true},
	)
	want := map[string]string{
		"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "CUDA_SCALE_LAUNCH_QUEUES": "0.25x",
		"GPUSHARE_LEASE": "vision-dev-3f2k", "GPUSHARE_TENANT": "vision", "GPUSHARE_GRANT": "dev",
	}
	if diff := cmp.Diff(want, set); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_VISIBLE_DEVICES"} {
		if !slices.Contains(unset, name) {
			t.Errorf("%s is inherited", name)
		}
	}
	set, unset = Environment(Lease{Devices: []gpu.UUID{"GPU-1"}, MPS: map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare/mps/x"}})
	if set["CUDA_MPS_PIPE_DIRECTORY"] != "/run/gpushare/mps/x" || slices.Contains(unset, "CUDA_MPS_PIPE_DIRECTORY") {
		t.Errorf("under MPS: %v, unset %v", set, unset)
	}
	if _, ok := set["CUDA_SCALE_LAUNCH_QUEUES"]; ok {
		t.Error("a lease that is never frozen has a reduced queue")
	}
}

// The open kernel module numbers the capabilities (nv-caps.c): 1 is config, 2 monitor, then 15 GPU instances of each
// GPU, each with its own minor and those of 8 compute instances.
const (
	firstGI     = 3
	minorsOfGPU = 15 * minorsOfGI
	minorsOfGI  = 1 + 8
)

// usual is the minor that the open kernel module assigns; ci is -1 for the GPU instance itself.
func usual(gpuMinor int, gi uint32, ci int) uint32 {
	return uint32(firstGI + minorsOfGPU*gpuMinor + minorsOfGI*int(gi) + 1 + ci)
}
