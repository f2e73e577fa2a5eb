package systemd

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/gpushare/gpushare/cgroup"
)

// infinity is how systemd spells "no limit" and "not set" in its unsigned properties.
const infinity = uint64(math.MaxUint64)

// lifetime is how long a property is set for. One property must not have both: after a reload, 252 uses the persistent value
// and 257 the runtime one.
type lifetime bool

const (
	persistent lifetime = false // until it is changed: limits apply after a boot, before the daemon starts
	runtime    lifetime = true  // until the next boot: after it no device is allowed before it was verified
)

// property is a property that the adapter writes: its D-Bus type, its lifetime, and the systemd version that brought it
// (org.freedesktop.systemd1(5), systemd.resource-control(5)).
type property struct {
	name      string
	signature string
	since     int
	lasts     lifetime
	limit     string // its name in cgroup.Info.Limits, empty for a property that is no limit
}

// table returns every property of slices. It is a function, so that no caller can change it.
func table() []property {
	return []property{
		{"CPUQuotaPerSecUSec", "t", 213, persistent, "cpu"},
		{"CPUWeight", "t", 232, persistent, "cpu"},
		{"MemoryMax", "t", 231, persistent, "memory"},
		{"MemoryHigh", "t", 231, persistent, "memory"},
		{"MemorySwapMax", "t", 232, persistent, "memory"},
		{"TasksMax", "t", 227, persistent, "tasks"},
		{"IOWeight", "t", 230, persistent, "io"},
		{"AllowedCPUs", "ay", 244, persistent, "cpuset"},
		{"DevicePolicy", "s", 208, persistent, ""},
		// Paths below /dev/char work for devices that do not exist since 240.
		{"DeviceAllow", "a(ss)", 240, runtime, ""},
	}
}

// oomPolicySince is the oldest systemd whose scopes have OOMPolicy. In a delegated unit without it the kernel kills single
// processes. Older versions do not report that such a scope ran out of memory.
const oomPolicySince = 253

// minVersion is the oldest systemd that the adapter works with. Every property of the table is older, but their effect
// together was only seen on 252 and 257, and 249 is the oldest version that a supported distribution has.
const minVersion = 249

// limitsSince lists the limits for which this version has all properties, and the kernel has the controller.
func limitsSince(version int, controllers []string) []string {
	var names []string
	for _, name := range cgroup.LimitNames() {
		ok := slices.Contains(controllers, map[string]string{"tasks": "pids"}[name]) || slices.Contains(controllers, name)
		for _, p := range table() {
			if p.limit == name && version < p.since {
				ok = false
			}
		}
		if ok {
			names = append(names, name)
		}
	}
	return names
}

// deviceAllow is one entry of DeviceAllow, of type (ss).
type deviceAllow struct{ Path, Access string }

// limitValues returns the value of every limit property, also of those without a limit.
func limitValues(l cgroup.Limits) (map[string]any, error) {
	l = l.Canonical()
	quota := infinity
	if l.CPUQuota != nil {
		quota = uint64(math.Round(*l.CPUQuota * 10_000)) // microseconds a second
	}
	cpus, err := cpuMask(l.CPUs)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"CPUQuotaPerSecUSec": quota,
		"CPUWeight":          orInfinity(l.CPUWeight),
		"MemoryMax":          orInfinity(l.MemoryMax),
		"MemoryHigh":         orInfinity(l.MemoryHigh),
		"MemorySwapMax":      orInfinity(l.SwapMax),
		"TasksMax":           orInfinity(l.TasksMax),
		"IOWeight":           orInfinity(l.IOWeight),
		"AllowedCPUs":        cpus,
	}, nil
}

// limitsOf reads the limits back from a unit's properties.
func limitsOf(props map[string]any) cgroup.Limits {
	var l cgroup.Limits
	if q := number(props, "CPUQuotaPerSecUSec"); q != nil {
		l.CPUQuota = new(float64(*q) / 10_000)
	}
	l.CPUWeight = number(props, "CPUWeight")
	l.MemoryMax = number(props, "MemoryMax")
	l.MemoryHigh = number(props, "MemoryHigh")
	l.SwapMax = number(props, "MemorySwapMax")
	l.TasksMax = number(props, "TasksMax")
	l.IOWeight = number(props, "IOWeight")
	if mask, ok := props["AllowedCPUs"].([]byte); ok {
		l.CPUs = cpuList(mask)
	}
	return l.Canonical()
}

// devicesOf reads the device rules back from a unit's properties. The properties are what systemd was given, which is not
// always what is in force: package isolation checks the effect.
func devicesOf(props map[string]any) (closed bool, rules []cgroup.DeviceRule) {
	policy, _ := props["DevicePolicy"].(string)
	closed = policy == "closed" || policy == "strict"
	entries, _ := props["DeviceAllow"].([][]any)
	for _, e := range entries {
		if len(e) != 2 {
			continue
		}
		name, _ := e[0].(string)
		access, _ := e[1].(string)
		if name == allChar || name == allBlock {
			closed = false // relaxed, see openDevices
		}
		rules = append(rules, ruleOf(name, access))
	}
	if !closed {
		return false, nil
	}
	return true, cgroup.SortRules(rules)
}

// All device nodes of a kind, in DeviceAllow.
const (
	allChar  = "char-*"
	allBlock = "block-*"
)

// openDevices allows all devices in a unit that once had device rules. DevicePolicy=auto would leave the program in the
// kernel while systemd shows "auto" (seen on 252 and 257), so the policy is kept and everything is allowed.
func openDevices() []deviceAllow {
	return []deviceAllow{{allChar, "rwm"}, {allBlock, "rwm"}}
}

func devicesFor(rules []cgroup.DeviceRule) []deviceAllow {
	allow := make([]deviceAllow, 0, len(rules))
	for _, r := range cgroup.SortRules(rules) {
		dir := "/dev/char"
		if r.Type == 'b' {
			dir = "/dev/block"
		}
		allow = append(allow, deviceAllow{fmt.Sprintf("%s/%d:%d", dir, r.Major, r.Minor), r.Access})
	}
	return allow
}

// ruleOf reads one entry back. An entry in another notation has no type, so that it equals no rule of gpushare.
func ruleOf(name, access string) cgroup.DeviceRule {
	r := cgroup.DeviceRule{Access: access, Name: name}
	kind, rest := byte('c'), ""
	var ok bool
	if rest, ok = strings.CutPrefix(name, "/dev/char/"); !ok {
		kind = 'b'
		if rest, ok = strings.CutPrefix(name, "/dev/block/"); !ok {
			return r
		}
	}
	major, minor, ok := strings.Cut(rest, ":")
	a, err1 := strconv.ParseUint(major, 10, 32)
	b, err2 := strconv.ParseUint(minor, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return r
	}
	r.Type, r.Major, r.Minor = kind, uint32(a), uint32(b)
	return r
}

// prop is a property for the wire.
func prop(name string, value any) sd.Property {
	return sd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

func orInfinity(n *uint64) uint64 {
	if n == nil {
		return infinity
	}
	return *n
}

func number(props map[string]any, name string) *uint64 {
	n, ok := props[name].(uint64)
	if !ok || n == infinity {
		return nil
	}
	return &n
}

// cpuMask encodes a CPU list for systemd: a bit for each CPU, lowest first.
func cpuMask(list string) ([]byte, error) {
	cpus, err := cgroup.ParseCPUs(list)
	if err != nil {
		return nil, err
	}
	mask := []byte{}
	for _, n := range cpus {
		for len(mask) <= n/8 {
			mask = append(mask, 0)
		}
		mask[n/8] |= 1 << (n % 8)
	}
	return mask, nil
}

func cpuList(mask []byte) string {
	var cpus []int
	for i, b := range mask {
		for bit := range 8 {
			if b&(1<<bit) != 0 {
				cpus = append(cpus, 8*i+bit)
			}
		}
	}
	return cgroup.FormatCPUs(cpus)
}

// execCommand is one command of ExecStartEx (since 243).
type execCommand struct {
	Path  string
	Argv  []string
	Flags []string
}

// execStart is a service's command with its arguments unchanged: ExecStart alone would expand variables.
func execStart(argv []string) sd.Property {
	return prop("ExecStartEx", []execCommand{{argv[0], argv, []string{"no-env-expand"}}})
}
