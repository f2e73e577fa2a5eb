package cgroup

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
)

// The kernel's defaults (Documentation/admin-guide/cgroup-v2.rst).
const (
	defaultWeight = 100
	cpuPeriod     = 100_000 // microseconds
)

// LimitNames are the possible names in Info.Limits.
func LimitNames() []string { return []string{"cpu", "memory", "tasks", "io", "cpuset"} }

// Canonical returns the limits as they read back: quotas in whole percents, memory in whole memory pages, defaults not set.
// Limits with the same effect have the same canonical form.
func (l Limits) Canonical() Limits {
	if l.CPUQuota != nil {
		// 1e-6 allows for rounding errors of quotas that result from a division.
		q := math.Max(1, math.Ceil(*l.CPUQuota-1e-6))
		l.CPUQuota = &q
	}
	l.CPUWeight = unlessDefault(l.CPUWeight)
	l.IOWeight = unlessDefault(l.IOWeight)
	l.MemoryMax = roundDown(l.MemoryMax)
	l.MemoryHigh = roundDown(l.MemoryHigh)
	l.SwapMax = roundDown(l.SwapMax)
	if l.TasksMax != nil {
		n := max(*l.TasksMax, 1)
		l.TasksMax = &n
	}
	if set, err := ParseCPUs(l.CPUs); err == nil {
		l.CPUs = FormatCPUs(set)
	}
	return l
}

// Only keeps the limits whose name is in names, and returns the names of the set limits that it dropped.
func (l Limits) Only(names []string) (kept Limits, dropped []string) {
	kept = l
	for _, name := range LimitNames() {
		if less := kept.without(name); less != kept && !slices.Contains(names, name) {
			kept, dropped = less, append(dropped, name)
		}
	}
	return kept, dropped
}

func (l Limits) without(name string) Limits {
	switch name {
	case "cpu":
		l.CPUQuota, l.CPUWeight = nil, nil
	case "memory":
		l.MemoryMax, l.MemoryHigh, l.SwapMax = nil, nil, nil
	case "tasks":
		l.TasksMax = nil
	case "io":
		l.IOWeight = nil
	case "cpuset":
		l.CPUs = ""
	}
	return l
}

// Equal reports whether two limits have the same effect.
func (l Limits) Equal(o Limits) bool {
	a, b := l.Canonical(), o.Canonical()
	return same(a.CPUQuota, b.CPUQuota) && same(a.CPUWeight, b.CPUWeight) && a.CPUs == b.CPUs &&
		same(a.MemoryMax, b.MemoryMax) && same(a.MemoryHigh, b.MemoryHigh) && same(a.SwapMax, b.SwapMax) &&
		same(a.TasksMax, b.TasksMax) && same(a.IOWeight, b.IOWeight)
}

// Expect returns the slice as this adapter would read it back: without what it cannot enforce. A slice whose state equals
// its expectation needs no step.
func (i Info) Expect(s Slice) Slice {
	kept, _ := s.Limits.Only(i.Limits)
	s.Limits = kept.Canonical()
	if !i.Devices {
		s.Closed, s.Devices = false, nil
		return s
	}
	s.Devices = SortRules(s.Devices)
	return s
}

// Matches reports whether the slice as read back equals the expected one.
func (st SliceState) Matches(want Slice) bool {
	return st.Name == want.Name && st.Limits.Equal(want.Limits) && st.Closed == want.Closed &&
		// Nearly always the rules are in the same order, and comparing is much faster than sorting.
		(sameRules(st.Devices, want.Devices) || sameRules(SortRules(st.Devices), SortRules(want.Devices)))
}

func sameRules(a, b []DeviceRule) bool {
	return slices.EqualFunc(a, b, func(a, b DeviceRule) bool {
		return a.Minor == b.Minor && a.Major == b.Major && a.Type == b.Type && a.Access == b.Access
	})
}

// SortRules returns the rules in a fixed order, with those for one device merged and each access in the order "rwm". Rules
// that are sorted already, as nearly always, are returned without a copy: the caller must not modify the result.
func SortRules(rules []DeviceRule) []DeviceRule {
	if ordered(rules) {
		return slices.Clip(rules)
	}
	sorted := slices.Clone(rules)
	slices.SortStableFunc(sorted, compareDevices)
	merged := sorted[:0]
	for _, r := range sorted {
		last := len(merged) - 1
		if last >= 0 && compareDevices(merged[last], r) == 0 {
			r.Access = normalAccess(merged[last].Access + r.Access)
			if r.Name == "" {
				r.Name = merged[last].Name
			}
			merged[last] = r
			continue
		}
		r.Access = normalAccess(r.Access)
		merged = append(merged, r)
	}
	return merged
}

func ordered(rules []DeviceRule) bool {
	for i := range rules {
		if i > 0 && compareDevices(rules[i-1], rules[i]) >= 0 {
			return false
		}
		if a := rules[i].Access; a != "rw" && a != "rwm" && normalAccess(a) != a { // nearly all rules have one of the first two
			return false
		}
	}
	return true
}

func compareDevices(a, b DeviceRule) int {
	switch {
	case a.Type != b.Type:
		return cmp.Compare(a.Type, b.Type)
	case a.Major != b.Major:
		return cmp.Compare(a.Major, b.Major)
	}
	return cmp.Compare(a.Minor, b.Minor)
}

func normalAccess(s string) string {
	switch s { // as nearly all rules are
	case "r", "w", "rw", "m", "rwm":
		return s
	}
	bits := 0
	for i := range len(s) {
		if bit := strings.IndexByte("rwm", s[i]); bit >= 0 {
			bits |= 1 << bit
		}
	}
	return [...]string{"", "r", "w", "rw", "m", "rm", "wm", "rwm"}[bits]
}

func unlessDefault(w *uint64) *uint64 {
	if w == nil || *w == defaultWeight {
		return nil
	}
	return w
}

func roundDown(b *uint64) *uint64 {
	if b == nil {
		return nil
	}
	unit := uint64(os.Getpagesize())
	n := *b / unit * unit
	return &n
}

func same[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// String is the slice's name for people: "vision/train", "vision", or "all" for the root of all managed slices.
func (n SliceName) String() string {
	switch {
	case n.Tenant == "":
		return "all"
	case n.Grant == "":
		return n.Tenant
	default:
		return n.Tenant + "/" + n.Grant
	}
}

// Check refuses a grant without a tenant, and a name that cannot be a directory name.
func (n SliceName) Check() error {
	if n.Tenant == "" && n.Grant != "" {
		return fmt.Errorf("cannot name a slice: grant %q has no tenant", n.Grant)
	}
	for _, part := range []string{n.Tenant, n.Grant} {
		if part != "" && !goodName(part) {
			return fmt.Errorf("cannot name a slice %q: use 1 to 100 letters, digits, '.', '_' and '-', not '.' or '-' first", part)
		}
	}
	return nil
}

// goodName reports whether the name of a tenant, grant or scope can be a directory name and, escaped, a unit name.
func goodName(s string) bool {
	if s == "" || len(s) > 100 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
