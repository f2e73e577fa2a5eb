package cgroup

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// limitFile is an interface file of a cgroup, with the format of its limit.
type limitFile struct {
	file       string
	limit      string // its name in Info.Limits
	controller string // in cgroup.controllers
	format     func(Limits) string
	parse      func(string, *Limits) error
}

// limitFiles are all files of a slice's limits (Documentation/admin-guide/cgroup-v2.rst). A function, so that no code can
// change the list.
func limitFiles() []limitFile {
	return []limitFile{
		{
			file: "cpu.max", limit: "cpu", controller: "cpu",
			format: func(l Limits) string {
				if l.CPUQuota == nil {
					return fmt.Sprintf("max %d", cpuPeriod)
				}
				return fmt.Sprintf("%.0f %d", *l.CPUQuota/100*cpuPeriod, cpuPeriod)
			},
			parse: func(s string, l *Limits) error {
				f := strings.Fields(s)
				if len(f) != 2 {
					return fmt.Errorf("%q is no quota and period", s)
				}
				if f[0] == "max" {
					return nil
				}
				quota, err := strconv.ParseUint(f[0], 10, 64)
				if err != nil {
					return fmt.Errorf("%q is no quota and period", s)
				}
				period, err := strconv.ParseUint(f[1], 10, 64)
				if err != nil || period == 0 {
					return fmt.Errorf("%q is no quota and period", s)
				}
				l.CPUQuota = new(float64(quota) * 100 / float64(period))
				return nil
			},
		},
		numberFile("cpu.weight", "cpu", "cpu", strconv.Itoa(defaultWeight), func(l *Limits) **uint64 { return &l.CPUWeight }),
		numberFile("memory.max", "memory", "memory", "max", func(l *Limits) **uint64 { return &l.MemoryMax }),
		numberFile("memory.high", "memory", "memory", "max", func(l *Limits) **uint64 { return &l.MemoryHigh }),
		numberFile("memory.swap.max", "memory", "memory", "max", func(l *Limits) **uint64 { return &l.SwapMax }),
		numberFile("pids.max", "tasks", "pids", "max", func(l *Limits) **uint64 { return &l.TasksMax }),
		{
			file: "io.weight", limit: "io", controller: "io",
			format: func(l Limits) string {
				if l.IOWeight == nil {
					return fmt.Sprintf("default %d", defaultWeight)
				}
				return fmt.Sprintf("default %d", *l.IOWeight)
			},
			parse: func(s string, l *Limits) error {
				for line := range strings.Lines(s) {
					if rest, ok := strings.CutPrefix(line, "default "); ok {
						n, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
						l.IOWeight = &n
						return err
					}
				}
				return fmt.Errorf("%q has no default weight", s)
			},
		},
		{
			file: "cpuset.cpus", limit: "cpuset", controller: "cpuset",
			// An empty line means all CPUs of the parent. A write of zero bytes would not reach the kernel.
			format: func(l Limits) string { return l.CPUs + "\n" },
			parse:  func(s string, l *Limits) error { l.CPUs = strings.TrimSpace(s); return nil },
		},
	}
}

// numberFile is a file that contains one number, or the word none for no limit.
func numberFile(file, limit, controller, none string, field func(*Limits) **uint64) limitFile {
	return limitFile{
		file: file, limit: limit, controller: controller,
		format: func(l Limits) string {
			if n := *field(&l); n != nil {
				return strconv.FormatUint(*n, 10)
			}
			return none
		},
		parse: func(s string, l *Limits) error {
			s = strings.TrimSpace(s)
			if s == none || s == "max" {
				return nil
			}
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				return fmt.Errorf("%q is not a number", s)
			}
			*field(l) = &n
			return nil
		},
	}
}

// fileWrite is one file to write.
type fileWrite struct{ file, value string }

// limitWrites are the writes that change the limits from is to want, for the limits in names.
func limitWrites(is, want Limits, names []string) []fileWrite {
	is, want = is.Canonical(), want.Canonical()
	var writes []fileWrite
	for _, k := range limitFiles() {
		if !slices.Contains(names, k.limit) {
			continue
		}
		if v := k.format(want); v != k.format(is) {
			writes = append(writes, fileWrite{k.file, v})
		}
	}
	return writes
}

// Limits reads back the limits in names that are active on a cgroup. When the kernel lacks the file of a limit although its
// controller is enabled (swap, on a kernel without swap accounting), the value is the one in otherwise. When the controller
// is not enabled, there is no limit. ErrNotFound when there is no such cgroup.
func (h Hierarchy) Limits(cg string, names []string, otherwise Limits) (Limits, error) {
	dir := h.Dir(cg)
	var acting []string // the enabled controllers, read when first needed
	l, err := readLimits(names, func(k limitFile) (string, bool, error) {
		b, err := boundedread.Trusted(filepath.Join(dir, k.file), boundedread.Value)
		if !isRemoved(err) {
			return string(b), err == nil, err
		}
		instead := k.format(otherwise)
		if instead == k.format(Limits{}) {
			return "", false, nil
		}
		if acting == nil {
			if acting, err = readWords(dir, "cgroup.controllers"); err != nil {
				return "", false, err
			}
		}
		return instead, slices.Contains(acting, k.controller), nil
	})
	if err != nil && !h.Exists(cg) || err == nil && l == (Limits{}) && !h.Exists(cg) {
		return Limits{}, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	return l, err
}

// readLimits reads the limits in names with a function that returns a file's content. A missing file means no limit.
func readLimits(names []string, read func(limitFile) (string, bool, error)) (Limits, error) {
	var l Limits
	for _, k := range limitFiles() {
		if !slices.Contains(names, k.limit) {
			continue
		}
		s, ok, err := read(k)
		if err != nil {
			return Limits{}, fmt.Errorf("cannot read %s: %w", k.file, err)
		}
		if !ok {
			continue
		}
		if err := k.parse(s, &l); err != nil {
			return Limits{}, fmt.Errorf("cannot read %s: %w", k.file, err)
		}
	}
	return l.Canonical(), nil
}

// controllerOf names the controller that a limit needs.
func controllerOf(limit string) string {
	if limit == "tasks" {
		return "pids"
	}
	return limit
}
