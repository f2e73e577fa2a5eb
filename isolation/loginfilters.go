package isolation

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/gpu"
)

// capsDriver is the name of the capabilities' driver in /proc/devices.
const capsDriver = "nvidia-caps"

// lastGPU is the largest minor of major 195 that is a GPU: 254 is nvidia-modeset and 255 nvidiactl.
const lastGPU = 253

// AllGPUs is the ranges to close when the managed GPUs are unknown: every GPU, its graphics nodes if its driver for them is
// loaded, and every MIG capability if the driver has them.
func AllGPUs(host *Host) []device.Range {
	closed := append(driRangesBut(host, nil), device.Range{Type: 'c', Major: gpuMajor, Last: lastGPU})
	if major, ok := host.Majors[capsDriver]; ok {
		closed = append(closed, device.All(major))
	}
	return closed
}

// InPlaceLease is a lease whose processes remain outside the managed slices, with what it may open.
type InPlaceLease struct {
	Lease   string
	UID     uint32
	Cgroup  string // of the processes; empty when unknown
	Unit    bool   // the cgroup is a unit's, which has a login filter of its own
	Targets []Target
	Classes []string // of devices that its tenant may open
}

// LoginFilters returns the desired login filters: on the closed cgroups, which are those of logins and of units that run
// commands of users, and on those of adopted units. They close the managed GPUs to users without a lease on them. A managed GPU that is
// missing now may return with any minor: then all minors are closed except those of observed GPUs that are not managed. missing names
// the leases that get nothing.
func LoginFilters(
	h *Hardware, managed []gpu.UUID, closedCgroups []string, inPlace []InPlaceLease,
) (states []device.LoginFilterState, missing []string) {
	closed := managedRanges(h, managed)
	at := func(cg string) *device.LoginFilter {
		i := slices.IndexFunc(states, func(s device.LoginFilterState) bool { return s.Cgroup == cg })
		if i < 0 {
			i = len(states)
			states = append(states, device.LoginFilterState{Cgroup: cg, Filter: device.LoginFilter{Closed: closed}})
		}
		return &states[i].Filter
	}
	for _, cg := range closedCgroups {
		at(cg)
	}
	for _, v := range inPlace {
		rules, _, err := Rules(h, v.Targets, v.Classes)
		if err != nil {
			missing = append(missing, fmt.Sprintf("lease %s: %v", v.Lease, err))
		}
		if v.Unit && v.Cgroup != "" {
			g := at(v.Cgroup)
			g.Except = append(g.Except, exceptions(device.AnyUser, rules)...)
		}
		for _, cg := range closedCgroups {
			if v.Cgroup == "" || cgroup.Below(v.Cgroup, cg) {
				g := at(cg)
				g.Except = append(g.Except, exceptions(v.UID, rules)...)
			}
		}
	}
	for i := range states {
		states[i].Filter = states[i].Filter.Canonical()
	}
	return states, missing
}

func exceptions(uid uint32, rules []cgroup.DeviceRule) []device.Exception {
	var out []device.Exception
	for _, r := range rules {
		out = append(out, device.Exception{UID: uid, Rule: device.Rule{Type: r.Type, Major: r.Major, Minor: r.Minor, Access: r.Access}})
	}
	return out
}

// managedRanges are the devices of the managed GPUs: their nodes, their graphics nodes, and all their capabilities, also those without an
// instance, because the next instance at a placement gets the minors of the last one.
func managedRanges(h *Hardware, managed []gpu.UUID) []device.Range {
	if len(managed) == 0 {
		return nil
	}
	var known []uint32
	var closed []device.Range
	for _, id := range managed {
		d, ok := h.gpu(id)
		if !ok || d.Identity.Minor < 0 || d.Identity.Minor > lastGPU {
			return allBut(h, managed)
		}
		known = append(known, uint32(d.Identity.Minor))
		closed = append(closed, driRanges(h, d)...)
	}
	major, caps := h.Host.Majors[capsDriver]
	for _, minor := range known {
		closed = append(closed, device.Range{Type: 'c', Major: gpuMajor, First: minor, Last: minor})
		if caps && h.Host.Caps == nil {
			closed = append(closed, device.All(major)) // the driver does not report which belong to the GPU
		} else if caps {
			for _, n := range capsOf(h.Host.Caps, minor) {
				closed = append(closed, device.Range{Type: 'c', Major: major, First: n, Last: n})
			}
		}
	}
	return device.LoginFilter{Closed: closed}.Canonical().Closed
}

// allBut is every minor except those of observed GPUs that are not managed.
func allBut(h *Hardware, managed []gpu.UUID) []device.Range {
	var open, openCaps []uint32
	openDRI := map[string]bool{}
	for i := range h.GPUs {
		id := h.GPUs[i].Identity
		if !slices.Contains(managed, id.UUID) && id.Minor >= 0 && id.Minor <= lastGPU {
			open = append(open, uint32(id.Minor))
			openDRI[id.PCI] = true
			openCaps = append(openCaps, capsOf(h.Host.Caps, uint32(id.Minor))...)
		}
	}
	closed := driRangesBut(&h.Host, openDRI)
	for _, all := range AllGPUs(&Host{Majors: h.Host.Majors}) {
		if all.Major == gpuMajor {
			closed = append(closed, without(all, open)...)
			continue
		}
		if len(openCaps) > 0 {
			all.Last = lastCap(h.Host.Caps) // mig-minors lists all capabilities
		}
		closed = append(closed, without(all, openCaps)...)
	}
	return closed
}

func lastCap(caps Caps) uint32 {
	last := uint32(0)
	for _, n := range caps {
		last = max(last, n)
	}
	return last
}

// capsOf are the minors of a GPU's capabilities.
func capsOf(caps Caps, gpuMinor uint32) []uint32 {
	var out []uint32
	prefix := fmt.Sprintf("gpu%d/", gpuMinor)
	for name, n := range caps {
		if strings.HasPrefix(name, prefix) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// without removes minors from a range.
func without(r device.Range, minors []uint32) []device.Range {
	minors = slices.Clone(minors)
	slices.Sort(minors)
	var out []device.Range
	for _, m := range slices.Compact(minors) {
		if m < r.First || m > r.Last {
			continue
		}
		if m > r.First {
			out = append(out, device.Range{Type: r.Type, Major: r.Major, First: r.First, Last: m - 1})
		}
		if m == r.Last {
			return out
		}
		r.First = m + 1
	}
	return append(out, r)
}

// gpuText names the GPUs that a filter closes, for people: "/dev/nvidia0-3,5".
func gpuText(g device.LoginFilter) string {
	var parts []string
	for _, r := range g.Closed {
		switch {
		case r.Type != 'c' || r.Major != gpuMajor:
		case r.First == 0 && r.Last >= lastGPU:
			return "every GPU"
		case r.First == r.Last:
			parts = append(parts, strconv.Itoa(int(r.First)))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", r.First, r.Last))
		}
	}
	if len(parts) == 0 {
		return "no GPU"
	}
	return "/dev/nvidia" + strings.Join(parts, ",")
}

// exceptionText describes the exceptions of a filter, for people.
func exceptionText(g device.LoginFilter) string {
	seen := map[uint32]bool{}
	for _, e := range g.Except {
		seen[e.UID] = true
	}
	switch {
	case len(seen) == 0:
		return ""
	case seen[math.MaxUint32]:
		return ", except for its own lease"
	case len(seen) == 1:
		return ", except for 1 user with a lease"
	}
	return fmt.Sprintf(", except for %d users with a lease", len(seen))
}
