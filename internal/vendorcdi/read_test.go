package vendorcdi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/isolation"
)

const vendorFile = `---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
  - path: /dev/nvidia-modeset
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, update-ldconfig]
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, chmod, --mode, "755", --path, /dev/dri]
  mounts:
  - {hostPath: /usr/lib64/libcuda.so.580.95.05, containerPath: /usr/lib64/libcuda.so.580.95.05, options: [ro, nosuid, nodev, rbind, rprivate]}
  - {hostPath: /run/nvidia-persistenced/socket, containerPath: /run/nvidia-persistenced/socket, options: [ro, noexec]}
  - {hostPath: /dev/shm, containerPath: /dev/shm, options: [rw]}
`

// The vendor's CDI file gives mounts and hooks, and no device; one that does not fit is an error that says why.
func TestVendorCDI(t *testing.T) {
	host := func(t *testing.T, content string) string {
		t.Helper()
		root := t.TempDir()
		for name, mode := range map[string]os.FileMode{
			"usr/lib64/libcuda.so.580.95.05": 0o644, "run/nvidia-persistenced/socket": 0o644, "usr/bin/nvidia-cdi-hook": 0o755, "dev/shm": 0o644,
		} {
			write(t, filepath.Join(root, name), "", mode)
		}
		if content != "" {
			write(t, filepath.Join(root, "etc/cdi/nvidia.yaml"), content, 0o644)
		}
		return root
	}
	root := host(t, vendorFile)
	v, err := Read(root, "580.95.05")
	if err != nil {
		t.Fatal(err)
	}
	s, err := isolation.CDI(isolation.Container{
		Device: "vision.train", Rules: []cgroup.DeviceRule{{Type: 'c', Major: 195, Minor: 255, Access: "rw", Name: "/dev/nvidiactl"}},
		Libraries: []isolation.Library{{Path: "/usr/lib64/libcuda.so.580.95.05", Soname: "libcuda.so.1"}}, Vendor: v, HostRoot: "/",
	})
	if err != nil {
		t.Fatal(err)
	}
	e := s.Devices[0].ContainerEdits
	var mounts, nodes []string
	for _, m := range e.Mounts {
		mounts = append(mounts, strings.TrimPrefix(m.HostPath, root)+" at "+m.ContainerPath)
	}
	for _, n := range e.DeviceNodes {
		nodes = append(nodes, n.Path)
	}
	if d := cmp.Diff(
		[]string{
			"/usr/lib64/libcuda.so.580.95.05 at /usr/lib64/libcuda.so.580.95.05",
			"/run/nvidia-persistenced/socket at /run/nvidia-persistenced/socket",
		},
		mounts,
	); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"/dev/nvidiactl"}, nodes); d != "" {
		t.Errorf("its devices are not those of the lease alone: %s", d)
	}
	if len(e.Hooks) != 1 || e.Hooks[0].Path != filepath.Join(root, "usr/bin/nvidia-cdi-hook") || e.Hooks[0].Args[1] != "update-ldconfig" {
		t.Errorf("its hooks are %+v", e.Hooks)
	}

	if v, err := Read(host(t, ""), "580.95.05"); v != nil || err != nil {
		t.Errorf("without a file: %v, %v", v, err)
	}
	for name, bad := range map[string]struct{ content, version, want string }{
		"another driver":  {vendorFile, "595.1.2", "it is for driver 580.95.05, and the driver is 595.1.2"},
		"no YAML":         {"kind: [", "580.95.05", "yaml"},
		"another kind":    {strings.Replace(vendorFile, "nvidia.com/gpu", "example.com/gpu", 1), "580.95.05", `its kind is "example.com/gpu"`},
		"no library":      {strings.ReplaceAll(vendorFile, "libcuda.so.580.95.05", "libcuda.so.1"), "580.95.05", "/usr/lib64/libcuda.so.1, which it mounts, is not there"},
		"no path":         {strings.Replace(vendorFile, "hostPath: /run", "hostPath: run", 1), "580.95.05", "without an absolute path"},
		"a missing hook":  {strings.ReplaceAll(vendorFile, "path: /usr/bin/nvidia-cdi-hook", "path: /usr/bin/other"), "580.95.05", "its hook /usr/bin/other is not there"},
		"too large":       {vendorFile + strings.Repeat("#", most), "580.95.05", "more than 1024 KiB"},
		"no version":      {"kind: nvidia.com/gpu\n", "580.95.05", "no libcuda.so with a version"},
		"a list of lists": {"[[1]]", "580.95.05", "cannot use the vendor's CDI file"},
	} {
		if v, err := Read(host(t, bad.content), bad.version); v != nil || err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, %v, want %s", name, v, err, bad.want)
		}
	}
	writable := host(t, vendorFile)
	if err := os.Chmod(filepath.Join(writable, "etc/cdi/nvidia.yaml"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(writable, "580.95.05"); err == nil || !strings.Contains(err.Error(), "every user may write it") {
		t.Errorf("a file that every user may write: %v", err)
	}
}

func write(t *testing.T, file, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
