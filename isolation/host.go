package isolation

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
)

// Host is what the kernel says of device numbers and CPUs.
type Host struct {
	// Majors of character devices by driver name, as in /proc/devices. Some drivers have several numbers; the first one
	// is kept.
	Majors map[string]uint32
	// Caps are the minors of MIG capabilities; nil when the driver does not tell.
	Caps Caps
	// CPUs of each NUMA node, as in "0-31,64-95".
	CPUs map[int]string
	// Classes are the device nodes that exist of each class that a tenant may ask for: rdma, fuse, dri.
	Classes map[string][]cgroup.DeviceRule
}

// classPatterns names the nodes of each class of devices below /dev. A function, so that nobody can change it.
func classPatterns() map[string][]string {
	return map[string][]string{
		"rdma": {"infiniband/uverbs*", "infiniband/rdma_cm"},
		"fuse": {"fuse"},
		"dri":  {"dri/renderD*"}, // not card*: those set modes
	}
}

// ReadHost reads the host below root, "/" on a real one. What is not there is left empty; what cannot be read or
// understood is an error, beside all that could.
func ReadHost(root string) (Host, error) {
	h := Host{CPUs: map[int]string{}, Classes: map[string][]cgroup.DeviceRule{}}
	var errs []error
	read := func(path string) (string, bool) {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return string(b), err == nil
	}
	text, _ := read("proc/devices")
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

// nodeRule makes the rule that allows a device node. A file that is no character device is passed over: nothing that
// could be opened stands behind it.
func nodeRule(root, path string) (cgroup.DeviceRule, bool) {
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
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		line := strings.TrimSpace(sc.Text())
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

// CPUsOfNodes is the CPUs of the NUMA nodes, as one list; ok is false when a node's CPUs are not known.
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
