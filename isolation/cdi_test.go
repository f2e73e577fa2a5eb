package isolation

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/gpushare/cgroup"
)

// The rules for names in the CDI specification, section "CDI JSON Specification".
var (
	cdiVendor = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*$`)
	cdiClass  = regexp.MustCompile(`^[A-Za-z]([-_A-Za-z0-9]*[A-Za-z0-9])?$`) // dots only from 0.6.0 on
	cdiName   = regexp.MustCompile(`^[A-Za-z]([-_.:A-Za-z0-9]*[A-Za-z0-9])?$`)
)

// checkCDI checks a document by the rules of container runtimes.
func checkCDI(t *testing.T, s *specs.Spec) {
	t.Helper()
	if err := specs.ValidateVersion(s); err != nil {
		t.Error(err)
	}
	vendor, class := filepath.Split(s.Kind)
	if !cdiVendor.MatchString(vendor[:len(vendor)-1]) || !cdiClass.MatchString(class) {
		t.Errorf("kind %q", s.Kind)
	}
	if len(s.Devices) == 0 {
		t.Error("no device")
	}
	for _, d := range s.Devices {
		if !cdiName.MatchString(d.Name) {
			t.Errorf("device name %q", d.Name)
		}
		e := d.ContainerEdits
		for _, kv := range e.Env {
			if !regexp.MustCompile(`^[A-Z_]+=`).MatchString(kv) {
				t.Errorf("environment %q", kv)
			}
		}
		for _, n := range e.DeviceNodes {
			if !filepath.IsAbs(n.Path) || n.Type != "c" || !regexp.MustCompile(`^[rwm]+$`).MatchString(n.Permissions) {
				t.Errorf("device node %+v", n)
			}
		}
		seen := map[string]bool{}
		for _, m := range e.Mounts {
			if !filepath.IsAbs(m.HostPath) || !filepath.IsAbs(m.ContainerPath) || seen[m.ContainerPath] {
				t.Errorf("mount %+v", m)
			}
			seen[m.ContainerPath] = true
			if !slices.Contains(m.Options, "ro") {
				t.Errorf("mount %s is writable", m.ContainerPath)
			}
		}
		if len(e.DeviceNodes)+len(e.Env)+len(e.Mounts) == 0 {
			t.Errorf("device %s is empty, which is refused", d.Name)
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	// Runtimes refuse unknown fields.
	var again specs.Spec
	if err := json.Unmarshal(b, &again); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(*s, again); d != "" {
		t.Error(d)
	}
}

func container(root string) Container {
	return Container{
		Device: CDIDevice("vision-1", "train-2"), HostRoot: root,
		Rules: []cgroup.DeviceRule{
			{Type: 'c', Major: 195, Minor: 255, Access: "rw", Name: "/dev/nvidiactl"},
			{Type: 'c', Major: 511, Minor: 12, Access: "r", Name: "/dev/nvidia-caps/nvidia-cap12"},
		},
		Environment: map[string]string{"CUDA_VISIBLE_DEVICES": "MIG-1", "GPUSHARE_TENANT": "vision-1", "NVIDIA_VISIBLE_DEVICES": "all"},
		Libraries:   []Library{{Path: "/usr/lib64/libcuda.so.580.95.05", Soname: "libcuda.so.1"}, {Path: "/usr/bin/nvidia-smi"}},
	}
}

func described(t *testing.T, c Container) *specs.Spec {
	t.Helper()
	s, err := CDI(c)
	if err != nil {
		t.Fatal(err)
	}
	checkCDI(t, s)
	return s
}

func TestCDI(t *testing.T) {
	s := described(t, container("/"))
	if s.Version != "0.3.0" {
		t.Errorf("version %s: an older runtime refuses it without need", s.Version)
	}
	e := s.Devices[0].ContainerEdits
	if s.Devices[0].Name != "vision-1.train-2" {
		t.Errorf("device %q", s.Devices[0].Name)
	}
	if d := cmp.Diff([]string{"CUDA_VISIBLE_DEVICES=MIG-1", "GPUSHARE_TENANT=vision-1", "NVIDIA_VISIBLE_DEVICES=void"}, e.Env); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(
		&specs.DeviceNode{Path: "/dev/nvidia-caps/nvidia-cap12", Type: "c", Major: 511, Minor: 12, Permissions: "r"}, e.DeviceNodes[1],
	); d != "" {
		t.Error(d)
	}
	var mounts []string
	for _, m := range e.Mounts {
		mounts = append(mounts, m.HostPath+" at "+m.ContainerPath)
	}
	if d := cmp.Diff([]string{
		"/usr/lib64/libcuda.so.580.95.05 at /usr/lib64/libcuda.so.580.95.05", "/usr/lib64/libcuda.so.580.95.05 at /usr/lib64/libcuda.so.1",
		"/usr/lib64/libcuda.so.580.95.05 at /usr/local/nvidia/lib64/libcuda.so.1", "/usr/bin/nvidia-smi at /usr/bin/nvidia-smi",
	}, mounts); d != "" {
		t.Error(d)
	}

	elsewhere := described(t, container("/srv/node"))
	if elsewhere.Version != "0.5.0" { // the first version with hostPath
		t.Errorf("version %s of a host root", elsewhere.Version)
	}
	if n := elsewhere.Devices[0].ContainerEdits.DeviceNodes[0]; n.HostPath != "/srv/node/dev/nvidiactl" || n.Path != "/dev/nvidiactl" {
		t.Errorf("node of a host root: %+v", n)
	}
	if m := elsewhere.Devices[0].ContainerEdits.Mounts[1]; m.HostPath != "/srv/node/usr/lib64/libcuda.so.580.95.05" ||
		m.ContainerPath != "/usr/lib64/libcuda.so.1" {
		t.Errorf("mount of a host root: %+v", m)
	}
}

func TestReadLibraries(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{
		"usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "usr/lib64/libcuda.so.580.95.05", "usr/lib64/libnvidia-ml.so.580.95.05",
		"usr/lib64/libnvidia-ml.so.575.1", "usr/lib64/libGLX_nvidia.so.580.95.05", "usr/bin/nvidia-smi",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// A real library has its own DT_SONAME, whatever the name of its file.
	if libs, err := filepath.Glob("/lib/*/libz.so.1.*"); err == nil && len(libs) > 0 {
		b, err := os.ReadFile(libs[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "usr/lib64/libnvidia-nvvm.so.580.95.05"), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := ReadLibraries(root, "580.95.05")
	if i := slices.IndexFunc(got, func(l Library) bool { return filepath.Base(l.Path) == "libnvidia-nvvm.so.580.95.05" }); i >= 0 {
		if got[i].Soname != "libz.so.1" {
			t.Errorf("the soname was read as %q", got[i].Soname)
		}
		got = slices.Delete(got, i, i+1)
	}
	if d := cmp.Diff([]Library{
		{Path: "/usr/bin/nvidia-smi"},
		{Path: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", Soname: "libcuda.so.1"},
		{Path: "/usr/lib64/libnvidia-ml.so.580.95.05", Soname: "libnvidia-ml.so.1"},
	}, got); d != "" {
		t.Error(d)
	}
	if got := ReadLibraries(root, ""); got != nil {
		t.Errorf("libraries of no version: %v", got)
	}
}
