package cgroup

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// InUse is the use of limited resources by the processes of a cgroup. nil: the kernel does not report it here.
type InUse struct {
	Memory *uint64 // bytes that cannot be reclaimed easily: without the caches that the kernel drops first
	Tasks  *uint64
	CPU    *time.Duration // since the cgroup was created
}

// InUse reads what the cgroup and all below it use. ErrNotFound when there is no such cgroup.
func (h Hierarchy) InUse(cg string) (InUse, error) {
	if !h.Exists(cg) {
		return InUse{}, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	var u InUse
	memory, err := h.number(cg, "memory.current")
	if err != nil {
		return u, err
	}
	if memory != nil {
		stat, err := h.keyed(cg, "memory.stat")
		if err != nil {
			return u, err
		}
		// A limit below this memory makes processes slower, but the kernel kills none.
		drops := stat["active_file"] + stat["inactive_file"] + stat["slab_reclaimable"]
		u.Memory = new(*memory - min(*memory, drops))
	}
	if u.Tasks, err = h.number(cg, "pids.current"); err != nil {
		return u, err
	}
	cpu, err := h.keyed(cg, "cpu.stat")
	if us, ok := cpu["usage_usec"]; ok && err == nil {
		u.CPU = new(time.Duration(us) * time.Microsecond)
	}
	return u, err
}

// number reads a file that contains one number; nil when the cgroup has no such file.
func (h Hierarchy) number(cg, file string) (*uint64, error) {
	b, err := boundedread.Trusted(filepath.Join(h.Dir(cg), file), boundedread.Value)
	if isRemoved(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of cgroup %s: %w", file, cg, err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of cgroup %s: %q is not a number", file, cg, bytes.TrimSpace(b))
	}
	return &n, nil
}

// keyed reads a file of lines with a name and a number; empty when the cgroup has no such file.
func (h Hierarchy) keyed(cg, file string) (map[string]uint64, error) {
	b, err := boundedread.Trusted(filepath.Join(h.Dir(cg), file), boundedread.Value)
	if err != nil && !isRemoved(err) {
		return nil, fmt.Errorf("cannot read %s of cgroup %s: %w", file, cg, err)
	}
	out := map[string]uint64{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[name] = n
		}
	}
	return out, nil
}

// openDevicesTimeout bounds one scan of every descriptor of the processes of a cgroup.
const openDevicesTimeout = 2 * time.Second

// OpenDevices lists the character and block devices that the processes have open, each once, with the name under which one
// was opened. A process that exits meanwhile has none.
func OpenDevices(ps []Process) ([]DeviceRule, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openDevicesTimeout)
	defer cancel()
	pids := make([]int, len(ps))
	for i := range ps {
		pids[i] = ps[i].PID
	}
	var rules []DeviceRule
	unread, err := procfs.WalkOpenFiles(ctx, pids, func(f procfs.OpenFile) {
		r := DeviceRule{
			Type:   f.Type,
			Major:  unix.Major(f.Rdev),
			Minor:  unix.Minor(f.Rdev),
			Access: "rw",
			Name:   strings.TrimSuffix(f.Name, " (deleted)"),
		}
		if f.Type != 0 && !slices.ContainsFunc(rules, func(o DeviceRule) bool { return compareDevices(o, r) == 0 }) {
			rules = append(rules, r)
		}
	})
	if err == nil && unread > 0 {
		err = fmt.Errorf("cannot read the open files of all processes: %d are not readable", unread)
	}
	return SortRules(rules), err
}
