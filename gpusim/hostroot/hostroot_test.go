package hostroot_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/hostroot"
	"github.com/gpushare/gpushare/gpusim/nodefile"
)

type host struct {
	t    *testing.T
	dir  string
	node *gpusim.Node
}

func write(t *testing.T, file string) host {
	t.Helper()
	f, err := nodefile.Decode([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	n, err := gpusim.New(f.Config, engine.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r, err := hostroot.Write(dir, n, hostroot.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); n.Close() })
	return host{t, dir, n}
}

func (h host) read(path string) string {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, path))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

func (h host) has(path string) bool {
	_, err := os.Lstat(filepath.Join(h.dir, path))
	return err == nil
}

func TestWhatTheDriverShows(t *testing.T) {
	h := write(t, `
nvlink: {switches: 2}
gpus: [{model: A100-SXM4-40GB, minor: 3, pci: "0000:41:00.0", numa: 1}]`)
	for path, want := range map[string]string{
		"proc/driver/nvidia/version":                       `NVRM version: .* 580\.95\.05 `,
		"proc/driver/nvidia/gpus/0000:41:00.0/information": `(?s)Model: \t\t NVIDIA A100-SXM4-40GB\n.*GPU UUID: \t GPU-[0-9a-f-]{36}\n.*Device Minor: \t 3\n`,
		"proc/driver/nvidia/capabilities/mig/config":       "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
		"proc/driver/nvidia/capabilities/mig/monitor":      "DeviceFileMinor: 2\nDeviceFileMode: 292\n",
		"proc/devices": `(?s)195 nvidia\n.*237 nvidia-caps\n.*509 nvidia-uvm\n`,
		"sys/bus/pci/devices/0000:41:00.0/numa_node": "^1\n$",
		"sys/bus/pci/devices/0000:41:00.0/vendor":    "^0x10de\n$",
		"sys/bus/pci/devices/0000:41:00.0/device":    "^0x20b0\n$",
		"proc/sys/kernel/random/boot_id":             `^[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f-]{17}\n$`,
		"sys/module/nvidia/version":                  `^580\.95\.05\n$`,

		"proc/driver/nvidia-nvswitch/devices/0000:c5:00.0/information": "Device Instance: \t 1\n",
		fmt.Sprintf("proc/%d/comm", os.Getpid()):                       "^nv-fabricmanage\n$",
	} {
		if got := h.read(path); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s is %q, want %s", path, got, want)
		}
	}
	for _, dev := range []string{"nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"} {
		if !h.has("dev/" + dev) {
			t.Errorf("/dev/%s is missing", dev)
		}
	}
}

// TestCapabilityMinorsAreTheDrivers compares with known lines of the driver's table, including the last one.
func TestCapabilityMinorsAreTheDrivers(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(write(t, `gpus: [{model: A30-24GB}]`).read("proc/driver/nvidia-caps/mig-minors")), "\n")
	for _, want := range []string{"config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4", "gpu0/gi1/access 12", "gpu1/gi0/access 138"} {
		found := false
		for _, l := range lines {
			found = found || l == want
		}
		if !found {
			t.Errorf("no line %q", want)
		}
	}
	if last := lines[len(lines)-1]; last != "gpu31/gi14/ci7/access 4322" {
		t.Errorf("the last line is %q", last)
	}
}

// TestCapabilitiesFollowTheInstances checks that the files exist when the call that creates an instance returns, and are
// removed when the call that destroys it returns.
func TestCapabilitiesFollowTheInstances(t *testing.T) {
	h := write(t, `gpus: [{model: A100-SXM4-40GB, mig: true}]`)
	d := h.node.Driver(1)
	info, err := d.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := info.GPUs[0].UUID
	in, err := d.CreateInstance(t.Context(), id, gpu.NewInstance{ProfileID: 9, Placement: gpu.Placement{Start: 4, Size: 4}})
	if err != nil {
		t.Fatal(err)
	}
	gi, ci := gpusim.CapGI(0, in.ID), gpusim.CapCI(0, in.ID, 0)
	at := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu0/mig/gi%d", in.ID)
	if got := h.read(at + "/access"); !strings.HasPrefix(got, fmt.Sprintf("DeviceFileMinor: %d\n", gi)) {
		t.Errorf("%q", got)
	}
	if got := h.read(at + "/ci0/access"); !strings.HasPrefix(got, fmt.Sprintf("DeviceFileMinor: %d\n", ci)) {
		t.Errorf("%q", got)
	}
	nodes := []string{fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", gi), fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", ci)}
	for _, dev := range nodes {
		if !h.has(dev) {
			t.Errorf("%s is missing", dev)
		}
	}
	if err := d.DestroyInstance(t.Context(), id, in.ID); err != nil {
		t.Fatal(err)
	}
	if h.has(at) || h.has("proc/driver/nvidia/capabilities/gpu0") || !h.has("proc/driver/nvidia/capabilities/mig/config") {
		t.Error("the files of the instance were not removed, or others were removed with them")
	}
	if !h.has(nodes[0]) {
		t.Error("the device node was removed with the instance")
	}
	h.node.Reboot()
	if h.has(nodes[0]) || !h.has("dev/nvidia-caps/nvidia-cap1") {
		t.Error("the device node was not removed at boot, or another node was")
	}
}

func TestBootsAndLoadsDiffer(t *testing.T) {
	h := write(t, `gpus: [{model: A30-24GB}]`)
	inode := func() os.FileInfo {
		fi, err := os.Stat(filepath.Join(h.dir, "sys/module/nvidia"))
		if err != nil {
			t.Fatal(err)
		}
		return fi
	}
	boot, module := h.read("proc/sys/kernel/random/boot_id"), inode()
	if err := h.node.ReloadDriver(false); err != nil {
		t.Fatal(err)
	}
	if h.read("proc/sys/kernel/random/boot_id") != boot || inode().ModTime().Equal(module.ModTime()) {
		t.Error("a driver load cannot be distinguished from a boot or from no load")
	}
	h.node.Reboot()
	if h.read("proc/sys/kernel/random/boot_id") == boot {
		t.Error("the boot id is the same after a boot")
	}
}

func TestTheKernelLogHasXIDs(t *testing.T) {
	h := write(t, `gpus: [{model: A30-24GB}]`)
	if err := h.node.XID("0", 31, 4711, "python"); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^4,\d+,\d+,-;NVRM: Xid \(PCI:0000:07:00\): 31, pid=4711, name=python$`)
	if got := h.read("dev/kmsg"); !want.MatchString(got) {
		t.Errorf("%q", got)
	}
}

func TestDeviceNodesCanBeReal(t *testing.T) {
	f, err := nodefile.Decode([]byte(`gpus: [{model: A30-24GB, minor: 5}]`))
	if err != nil {
		t.Fatal(err)
	}
	n, err := gpusim.New(f.Config, engine.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	dir := t.TempDir()
	if err := unix.Mknod(filepath.Join(dir, "probe"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("this user cannot create device nodes: %v", err)
	}
	r, err := hostroot.Write(dir, n, hostroot.Options{Mknod: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "dev/nvidia5"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != hostroot.MajorGPU || unix.Minor(st.Rdev) != 5 ||
		st.Mode&0o777 != 0o666 {
		t.Errorf("mode %o, device %d:%d", st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
}

func TestAnAbsentDriverShowsNothing(t *testing.T) {
	h := write(t, "state: absent\ngpus: [{model: A30-24GB}]")
	for _, path := range []string{"proc/driver/nvidia", "dev/nvidia0", "dev/nvidiactl", "sys/module/nvidia"} {
		if h.has(path) {
			t.Errorf("%s exists", path)
		}
	}
}
