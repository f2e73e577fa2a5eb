package isolation

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
)

// uvmDriver is the name of the driver of unified memory in /proc/devices, and that of its module.
const uvmDriver = "nvidia-uvm"

// MissingNode is a device node of the driver that programs need and that does not exist, or has other numbers than the driver has now.
type MissingNode struct {
	Name   string // "/dev/nvidia-caps/nvidia-cap12"
	Reason string
	// Helper are the arguments with which the driver's own program, nvidia-modprobe, makes it.
	Helper []string
	// Commands make it without that program; empty: they cannot.
	Commands [][]string
	// Unloaded: the module is not loaded, and the node has no numbers.
	Unloaded bool
}

// Command is what makes the node, for people.
func (m *MissingNode) Command() string { return "nvidia-modprobe " + strings.Join(m.Helper, " ") }

// MissingNodes returns the nodes of the driver among these rules that are missing below root, and that of unified memory where a GPU is
// among them. Neither the kernel nor udev makes them: the first program that uses one does, by a setuid program of the vendor, which is
// not allowed to in a lease.
func MissingNodes(h *Host, root string, rules []cgroup.DeviceRule) []MissingNode {
	var out []MissingNode
	opensGPU := false
	for _, r := range rules {
		helper, ok := helperArgs(h, r)
		if !ok {
			continue
		}
		opensGPU = opensGPU || r.Major == gpuMajor && r.Minor != controlMinor
		if why := nodeFault(root, r); why != "" {
			out = append(out, MissingNode{Name: r.Name, Reason: why, Helper: helper, Commands: mknod(root, r)})
		}
	}
	if _, loaded := h.Majors[uvmDriver]; opensGPU && !loaded {
		m := MissingNode{Name: "/dev/nvidia-uvm", Reason: "the module nvidia-uvm is not loaded, and CUDA needs it", Helper: []string{"-u", "-c", "0"}, Unloaded: true}
		if root == "/" {
			m.Commands = [][]string{{"modprobe", uvmDriver}} // Its node is missing next.
		}
		out = append(out, m)
	}
	return out
}

// helperArgs returns the arguments with which nvidia-modprobe makes the node of a rule; false: it is none of its nodes.
func helperArgs(h *Host, r cgroup.DeviceRule) ([]string, bool) {
	uvm, hasUVM := h.Majors[uvmDriver]
	caps, hasCaps := h.Majors[capsDriver]
	switch {
	case r.Type != 'c' || !strings.HasPrefix(r.Name, "/dev/nvidia"):
		return nil, false
	case r.Major == gpuMajor:
		return []string{"-c", strconv.Itoa(int(r.Minor))}, true
	case hasUVM && r.Major == uvm:
		return []string{"-u", "-c", strconv.Itoa(int(r.Minor))}, true
	case hasCaps && r.Major == caps:
		for name, minor := range h.Caps {
			gpu, rest, ok := strings.Cut(name, "/")
			if ok && minor == r.Minor {
				return []string{"-f", "/proc/driver/nvidia/capabilities/" + gpu + "/mig/" + rest}, true
			}
		}
	}
	return nil, false
}

// nodeFault returns what is wrong with a node; empty: nothing. The nodes of a virtual host may be regular files.
func nodeFault(root string, r cgroup.DeviceRule) string {
	var st unix.Stat_t
	err := unix.Stat(filepath.Join(root, r.Name), &st)
	switch {
	case os.IsNotExist(err):
		return "it does not exist"
	case err != nil:
		return "" // Whether it is there is not known.
	case st.Mode&unix.S_IFMT == unix.S_IFREG && root != "/":
		return ""
	case st.Mode&unix.S_IFMT != unix.S_IFCHR:
		return "it is no device"
	case unix.Major(st.Rdev) != r.Major || unix.Minor(st.Rdev) != r.Minor:
		return fmt.Sprintf("it is the device %d:%d, and the driver has %d:%d now", unix.Major(st.Rdev), unix.Minor(st.Rdev), r.Major, r.Minor)
	}
	return ""
}

// mknod are the commands that make a node with the modes of the driver: capabilities are read, the others also written.
func mknod(root string, r cgroup.DeviceRule) [][]string {
	path, mode := filepath.Join(root, r.Name), "666"
	if r.Access == "r" {
		mode = "444"
	}
	return [][]string{
		{"mkdir", "-p", "-m", "755", filepath.Dir(path)}, {"rm", "-f", path},
		{"mknod", "-m", mode, path, "c", strconv.Itoa(int(r.Major)), strconv.Itoa(int(r.Minor))},
	}
}
