package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// InUse is the use of limited resources by the processes of a cgroup. nil: the kernel does not report it here.
type InUse struct {
	Memory *uint64 // bytes that cannot be reclaimed easily: without the caches that the kernel drops first
	Tasks  *uint64
	CPU    *time.Duration // since the cgroup was created
}

// InUse reads what the cgroup and all below it use. ErrNotFound when there is no such cgroup: a removed one must not look idle.
func (h Hierarchy) InUse(cg string) (u InUse, failed error) {
	m, err := cgroup2.Load(cg, cgroup2.WithMountpoint(h.Mount))
	if err != nil {
		return InUse{}, fmt.Errorf("cannot read the use of cgroup %s: %w", cg, err)
	}
	memory, failedMemory := m.StatFiltered(cgroup2.StatMemory)
	pids, failedPids := m.StatFiltered(cgroup2.StatPids)
	cpu, failedCPU := m.StatFiltered(cgroup2.StatCPU)
	if err := errors.Join(failedMemory, failedPids, failedCPU); err != nil {
		failed = fmt.Errorf("cannot read the use of cgroup %s: %w", cg, err)
	}
	// The library reads a file that is missing as 0.
	if failedMemory == nil && h.has(cg, "memory.current") && h.has(cg, "memory.stat") {
		// A limit below this memory makes processes slower, but the kernel kills none.
		drops := memory.GetMemory().GetActiveFile() + memory.GetMemory().GetInactiveFile() + memory.GetMemory().GetSlabReclaimable()
		used := memory.GetMemory().GetUsage()
		u.Memory = new(used - min(used, drops))
	}
	if failedPids == nil && h.has(cg, "pids.current") {
		if pids.GetPids().GetCurrent() == math.MaxUint64 { // It reads "max" as this.
			return u, fmt.Errorf("cannot read the tasks of cgroup %s: pids.current has no number", cg)
		}
		u.Tasks = new(pids.GetPids().GetCurrent())
	}
	if failedCPU == nil && h.has(cg, "cpu.stat") {
		u.CPU = new(time.Duration(cpu.GetCPU().GetUsageUsec()) * time.Microsecond)
	}
	if !h.Exists(cg) {
		return InUse{}, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	return u, failed
}

// has reports whether the kernel has the file for the cgroup: without its controller it has none.
func (h Hierarchy) has(cg, file string) bool {
	_, err := os.Lstat(filepath.Join(h.Dir(cg), file))
	return err == nil
}

// openDevicesTimeout bounds one scan of every descriptor of the processes of a cgroup.
const openDevicesTimeout = 2 * time.Second

// OpenDevices lists the character and block devices that the processes have open, each once, with the name under which one
// was opened, empty if that is too long. A process that exits meanwhile has none. With an error it has the devices that were found.
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
		if f.Type != 0 && !slices.ContainsFunc(rules, func(o DeviceRule) bool { return compareDevices(o, r) == 0 }) &&
			!f.OnlyNamed() {
			rules = append(rules, r)
		}
	})
	if err == nil && unread > 0 {
		err = fmt.Errorf("cannot read the open files of all processes: %d are not readable", unread)
	}
	return SortRules(rules), err
}
