package isolation

import (
	"errors"
	"fmt"
	"io/fs"
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
	// Manual: the driver's parameters allow no program to make it. Commands are those of an administrator.
	Manual bool
	// Unloaded: the module is not loaded, and the node has no numbers.
	Unloaded bool
}

// Command is what makes the node, for people.
func (m *MissingNode) Command() string {
	if !m.Manual {
		return "nvidia-modprobe " + strings.Join(m.Helper, " ")
	}
	each := make([]string, 0, len(m.Commands))
	for _, argv := range m.Commands {
		each = append(each, strings.Join(argv, " "))
	}
	return strings.Join(each, " && ")
}

// MissingNodes returns the nodes of the driver among these rules that are missing below root, and that of unified memory where a GPU is
// among them. Neither the kernel nor udev makes them: the first program that uses one does, by a setuid program of the vendor, which is
// not allowed to in a lease.
func MissingNodes(h *Host, root string, rules []cgroup.DeviceRule) []MissingNode {
	var out []MissingNode
	opensGPU := false
	for _, r := range rules {
		if !ofDriver(h, r) {
			continue
		}
		opensGPU = opensGPU || r.Major == gpuMajor && r.Minor != controlMinor
		why := nodeFault(root, r)
		if why == "" {
			continue // Which capability it is takes long to find: a driver has thousands.
		}
		if helper, ok := helperArgs(h, r); ok {
			out = append(out, missingNode(root, r, why, helper))
		}
	}
	if _, loaded := h.Majors[uvmDriver]; opensGPU && !loaded {
		m := MissingNode{
			Name:     "/dev/nvidia-uvm",
			Reason:   "the module nvidia-uvm is not loaded, and CUDA needs it",
			Helper:   []string{"-u", "-c", "0"},
			Unloaded: true,
		}
		if root == "/" {
			m.Commands = [][]string{{"modprobe", uvmDriver}} // Its node is missing next.
		}
		out = append(out, m)
	}
	return out
}

// ofDriver reports whether a rule is of a node that nvidia-modprobe makes, if there is such a capability.
func ofDriver(h *Host, r cgroup.DeviceRule) bool {
	if r.Type != 'c' || !strings.HasPrefix(r.Name, "/dev/nvidia") {
		return false
	}
	uvm, hasUVM := h.Majors[uvmDriver]
	caps, hasCaps := h.Majors[capsDriver]
	return r.Major == gpuMajor || hasUVM && r.Major == uvm || hasCaps && r.Major == caps
}

// helperArgs returns the arguments with which nvidia-modprobe makes the node of a rule; false: it is none of its nodes.
func helperArgs(h *Host, r cgroup.DeviceRule) ([]string, bool) {
	uvm, hasUVM := h.Majors[uvmDriver]
	switch {
	case !ofDriver(h, r):
		return nil, false
	case r.Major == gpuMajor:
		return []string{"-c", strconv.Itoa(int(r.Minor))}, true
	case hasUVM && r.Major == uvm:
		return []string{"-u", "-c", strconv.Itoa(int(r.Minor))}, true
	default:
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
	case errors.Is(err, fs.ErrNotExist):
		return "it does not exist"
	case err != nil:
		return "" // Whether it is there is not known.
	case st.Mode&unix.S_IFMT == unix.S_IFREG && root != "/":
		return ""
	case st.Mode&unix.S_IFMT != unix.S_IFCHR:
		return "it is no device"
	case unix.Major(st.Rdev) != r.Major || unix.Minor(st.Rdev) != r.Minor:
		return fmt.Sprintf(
			"it is the device %d:%d, and the driver has %d:%d now", unix.Major(st.Rdev), unix.Minor(st.Rdev), r.Major, r.Minor,
		)
	}
	return ""
}

// missingNode is a node with the commands that make it as the driver asks for, if it does.
func missingNode(root string, r cgroup.DeviceRule, why string, helper []string) MissingNode {
	m := MissingNode{Name: r.Name, Reason: why, Helper: helper}
	f, err := deviceFile{mode: 0o666}, error(nil) // The nodes of unified memory have no parameters.
	switch {
	case helper[0] == "-f":
		f, err = readDeviceFile(root, helper[1], 0o444)
	case r.Major == gpuMajor:
		f, err = readDeviceFile(root, paramsFile, 0o666)
	}
	if err != nil {
		m.Reason += fmt.Sprintf(", and which mode it gets is not known: %v", err)
		return m
	}
	m.Commands = mknod(root, r, f)
	if f.manual {
		m.Manual = true
		m.Reason += ", and by " + f.source + " no program makes it"
	}
	return m
}

// mknod are the commands that make a node with the mode and owner that the driver asks for. What has its name and is not it is removed
// before, as nvidia-modprobe does: it is the node of an earlier load of the driver.
func mknod(root string, r cgroup.DeviceRule, f deviceFile) (out [][]string) {
	path := filepath.Join(root, r.Name)
	if dir := filepath.Dir(path); dir != filepath.Join(root, "dev") {
		out = append(out, []string{"mkdir", "-p", "-m", "755", dir})
	}
	out = append(out, []string{"rm", "-f", path},
		[]string{"mknod", "-m", fmt.Sprintf("%03o", f.mode), path, "c", strconv.Itoa(int(r.Major)), strconv.Itoa(int(r.Minor))})
	if f.uid != 0 || f.gid != 0 {
		out = append(out, []string{"chown", fmt.Sprintf("%d:%d", f.uid, f.gid), path})
	}
	return out
}
