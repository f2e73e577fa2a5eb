package status

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/observe"
)

// Another scheduler of a managed GPU is named, with the spec entry that corrects it. A GPU in mode external is no problem.
func TestExternalSchedulersAreReported(t *testing.T) {
	node := &observe.Node{GPUs: []observe.GPU{
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-0", Index: 0, Minor: 1}}}, // Index and minor differ.
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-1", Index: 1, Minor: 0}}},
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-2", Index: 2, Minor: 2}}},
	}}
	want := func(modes ...string) *state.Desired {
		d := &state.Desired{GPUs: map[gpu.UUID]*api.GPUSpec{}}
		for i, m := range modes {
			if m != "" {
				d.GPUs[node.GPUs[i].Identity.UUID] = &api.GPUSpec{Mode: m}
			}
		}
		return d
	}
	slurmd, kubelet := map[string]string{"proc/4711/comm": "slurmd\n"}, map[string]string{"proc/815/comm": "kubelet\n"}
	with := func(base map[string]string, more ...string) map[string]string {
		out := map[string]string{"proc/1/comm": "systemd\n", "proc/uptime": "1 1\n"}
		for k, v := range base {
			out[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	managed := want(api.ModeTimeslice, api.ModeExclusive, "")
	owned := func(owners ...string) *state.Desired {
		d := want(api.ModeTimeslice, api.ModeExclusive, "")
		for i, owner := range owners {
			d.GPUs[node.GPUs[i].Identity.UUID].Owner = owner
		}
		return d
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  *state.Desired
		words []string // of the warning, and of its hint; none: no warning
	}{
		{"no other scheduler", with(nil), managed, nil},
		{"slurmd without GPUs", with(slurmd, "etc/slurm/gres.conf", "Name=nic Count=1\n"), managed, nil},
		{"a file, and no slurmd", with(nil, "etc/slurm/gres.conf", "AutoDetect=nvml\n"), managed, nil},
		{"slurmd finds them all", with(slurmd, "etc/slurm/gres.conf", "AutoDetect=nvml\n"), managed, []string{"slurmd (pid 4711)", "GPUs 0, 1", "AutoDetect=nvml", "index: [0, 1]", "owner: slurm"}},
		{"slurmd by minor and not by index", with(slurmd, "etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia0\n"), managed, []string{"GPU 1", "File=/dev/nvidia0", "index: [1]"}},
		{"slurmd has an unmanaged GPU", with(slurmd, "etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia2\n"), managed, nil},
		{"left to Slurm", with(slurmd, "etc/slurm/gres.conf", "AutoDetect=nvml\n"), want(api.ModeExternal, api.ModeExternal, api.ModeExternal), nil},
		{"placed by Slurm", with(slurmd, "etc/slurm/gres.conf", "AutoDetect=nvml\n"), owned("slurm", "slurm"), nil},
		{"one placed by Slurm", with(slurmd, "etc/slurm/gres.conf", "AutoDetect=nvml\n"), owned("slurm", ""), []string{"schedules GPU 1 as well", "'owner: slurm' in the entry of GPU 1", "share_with: [local]", "index: [1]"}},
		{"placed by another", with(slurmd, "etc/slurm/gres.conf", "AutoDetect=nvml\n"), owned("kubernetes", "slurm"), []string{"schedules GPU 0 as well"}},
		{"of another node", with(slurmd, "etc/slurm/gres.conf", "NodeName=lab[1-4] AutoDetect=nvml\n"), managed, nil},
		{"of this node", with(slurmd, "etc/slurm-llnl/gres.conf", "NodeName=lab[5-9] AutoDetect=nvml\n"), managed, []string{"/etc/slurm-llnl/gres.conf"}},
		{"included", with(slurmd, "etc/slurm/gres.conf", "Include gres.d/lab.conf\n", "etc/slurm/gres.d/lab.conf", "Name=gpu File=/dev/nvidia[0-1]\n"), managed, []string{"GPUs 0, 1"}},
		{"files that include each other", with(slurmd, "etc/slurm/gres.conf", "Include gres.conf\n"), managed, []string{"include each other"}},
		{"a kubelet without GPUs", with(kubelet, "var/lib/kubelet/device-plugins/kubelet.sock", ""), managed, nil},
		{"a kubelet", with(kubelet, "var/lib/kubelet/device-plugins/nvidia-gpu.sock", ""), managed, []string{"kubelet (pid 815)", "/var/lib/kubelet/device-plugins/nvidia-gpu.sock", "owner: kubernetes"}},
		{"a kubelet with claims", with(kubelet, "var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock", ""), managed, []string{"gpu.nvidia.com"}},
		{"a socket, and no kubelet", with(nil, "var/lib/kubelet/device-plugins/nvidia-gpu.sock", ""), managed, nil},
		{"placed by Kubernetes", with(kubelet, "var/lib/kubelet/device-plugins/nvidia-gpu.sock", ""), owned("kubernetes", "kubernetes"), nil},
		{"one placed by Kubernetes", with(kubelet, "var/lib/kubelet/device-plugins/nvidia-gpu.sock", ""), owned("kubernetes", "slurm"), []string{"schedules GPU 1 as well", "'owner: kubernetes' in the entry of GPU 1"}},
		{"the MIG manager, and GPUs of an engine", with(nil, "etc/systemd/system/multi-user.target.wants/nvidia-mig-manager.service", ""), owned("slurm", "slurm"), []string{"nvidia-mig-manager", "GPUs 0, 1"}},
		{"the MIG manager", with(nil, "etc/systemd/system/multi-user.target.wants/nvidia-mig-manager.service", ""), managed, []string{"nvidia-mig-manager", "systemctl disable"}},
		{"DCGM, and MIG", with(map[string]string{"proc/99/comm": "nv-hostengine\n"}), want(api.ModeMIG), []string{"nv-hostengine (pid 99)", "quiesce: [nvidia-dcgm.service]"}},
		{"DCGM, and no MIG", with(map[string]string{"proc/99/comm": "nv-hostengine\n"}), managed, nil},
		{"all of them, and no managed GPU", with(slurmd, "etc/slurm/gres.conf", "AutoDetect=nvml\n", "proc/815/comm", "kubelet\n", "var/lib/kubelet/device-plugins/nvidia-gpu.sock", ""), want(), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range c.files {
				file := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			o := external.Read(root, "lab7.example.org")
			var warnings []string
			checkExternalSchedulers(&o, c.want, node, func(_, message, hint string) { warnings = append(warnings, message+" | "+hint) })
			if len(c.words) == 0 && len(warnings) > 0 || len(c.words) > 0 && len(warnings) != 1 {
				t.Fatalf("it warns %d times: %q", len(warnings), warnings)
			}
			for _, s := range c.words {
				if !strings.Contains(warnings[0], s) {
					t.Errorf("it says %q, not %q", warnings[0], s)
				}
			}
		})
	}
}

// Where slurmd runs, doctor has one line: whether its gres.conf names every GPU.
func TestSlurmKnowsTheGPUs(t *testing.T) {
	t.Parallel()
	node := &observe.Node{GPUs: []observe.GPU{
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-0", Index: 0, Minor: 1}}}, // Index and minor differ.
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-1", Index: 1, Minor: 0}}},
	}}
	const file = "/etc/slurm/gres.conf"
	for _, c := range []struct {
		name     string
		host     external.Host
		ok, warn string
	}{
		{"no slurmd", external.Host{Gres: external.Gres{Minors: []int{0}}, GresFile: file}, "", ""},
		{"every GPU", external.Host{Slurmd: 42, Gres: external.Gres{Minors: []int{0, 1}}, GresFile: file}, "slurmd (pid 42) has every GPU in " + file, ""},
		{"found by the driver", external.Host{Slurmd: 42, Gres: external.Gres{Auto: true}, GresFile: file}, "has every GPU", ""},
		{"one is lacking", external.Host{Slurmd: 42, Gres: external.Gres{Minors: []int{1}}, GresFile: file}, "", file + " does not name GPU 1: with ConstrainDevices too it is open"},
		{"none is there", external.Host{Slurmd: 42}, "", "no gres.conf names a GPU"},
	} {
		var said, warned string
		checkSlurm(
			&c.host, node, func(_, message string) { said += message },
			func(_, message, hint string) {
				warned += message
				if !strings.Contains(hint, "'gpushare slurm check'") {
					t.Errorf("%s: the hint is %q", c.name, hint)
				}
			},
		)
		if !strings.Contains(said, c.ok) || c.ok == "" && said != "" || !strings.Contains(warned, c.warn) || c.warn == "" && warned != "" {
			t.Errorf("%s: ok %q, warning %q", c.name, said, warned)
		}
	}
}
