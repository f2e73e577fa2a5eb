package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// Host is the device numbers and CPUs that the kernel reports.
type Host struct {
	// Majors of character devices by driver name, as in /proc/devices. Of a driver with several majors it is the first.
	Majors map[string]uint32
	// Caps are the minors of MIG capabilities; nil when the driver does not report them.
	Caps Caps
	// CPUs of each NUMA node, as in "0-31,64-95".
	CPUs map[int]string
	// Classes are the existing device nodes of the classes that belong to no GPU: rdma, fuse.
	Classes map[string][]cgroup.DeviceRule
	// DRI are the nodes of the kernel's graphics drivers for each NVIDIA GPU, by PCI address: those of the class dri.
	DRI map[string][]cgroup.DeviceRule
}

// classPatterns are the nodes of each class of devices below /dev. A function, so that no code can change them.
func classPatterns() map[string][]string {
	return map[string][]string{
		"rdma": {"infiniband/uverbs*", "infiniband/rdma_cm"},
		"fuse": {"fuse"},
	}
}

// devicesFile has the drivers and their majors.
const devicesFile = "proc/devices"

// ReadHost reads the host below root ("/" on a real host). Missing files leave their part empty. A file that cannot be
// read or parsed is an error; the rest is returned as well.
func ReadHost(root string) (Host, error) {
	h := Host{CPUs: map[int]string{}, Classes: map[string][]cgroup.DeviceRule{}}
	var errs []error
	read := func(path string) (string, bool) {
		b, err := boundedread.Trusted(filepath.Join(root, path), boundedread.Table)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return string(b), err == nil
	}
	text, _ := read(devicesFile)
	h.Majors = parseMajors(text)
	if text, ok := read("proc/driver/nvidia-caps/mig-minors"); ok {
		caps, err := parseCapsOnce(text)
		if err != nil {
			errs = append(errs, err)
		}
		h.Caps = caps
	}
	nodes, err := filepath.Glob(filepath.Join(root, "sys/devices/system/node/node[0-9]*"))
	errs = append(errs, err)
	for _, dir := range nodes {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		if text, ok := read(filepath.Join("sys/devices/system/node", filepath.Base(dir), "cpulist")); ok {
			h.CPUs[n] = strings.TrimSpace(text)
		}
	}
	if h.DRI, err = readDRI(root); err != nil {
		errs = append(errs, err)
	}
	for class, patterns := range classPatterns() {
		for _, p := range patterns {
			paths, err := filepath.Glob(filepath.Join(root, "dev", p))
			errs = append(errs, err)
			for _, path := range paths {
				if rule, ok := nodeRule(root, path); ok {
					h.Classes[class] = append(h.Classes[class], rule)
				}
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return h, fmt.Errorf("cannot read the host's devices: %w", err)
	}
	return h, nil
}

// nodeRule returns the rule that allows a device node. ok is false for a file that is not a character device.
func nodeRule(root, path string) (rule cgroup.DeviceRule, ok bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return cgroup.DeviceRule{}, false
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return cgroup.DeviceRule{}, false
	}
	return cgroup.DeviceRule{Type: 'c', Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev), Access: "rw", Name: "/" + name}, true
}

// parseMajors reads the character devices of /proc/devices.
func parseMajors(text string) map[string]uint32 {
	majors := map[string]uint32{}
	character := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasSuffix(line, ":") {
			character = line == "Character devices:"
			continue
		}
		number, name, ok := strings.Cut(line, " ")
		n, err := strconv.ParseUint(number, 10, 12) // the kernel's majors have 12 bits
		if !ok || err != nil || !character {
			continue
		}
		if _, had := majors[strings.TrimSpace(name)]; !had {
			majors[strings.TrimSpace(name)] = uint32(n)
		}
	}
	return majors
}

// CPUsOfNodes returns the CPUs of the NUMA nodes as one list; ok is false when the CPUs of a node are unknown.
func (h *Host) CPUsOfNodes(nodes []int) (list string, ok bool) {
	var all []int
	for _, n := range nodes {
		cpus, err := cgroup.ParseCPUs(h.CPUs[n])
		if err != nil || len(cpus) == 0 {
			return "", false
		}
		all = append(all, cpus...)
	}
	slices.Sort(all)
	return cgroup.FormatCPUs(slices.Compact(all)), len(all) > 0
}
