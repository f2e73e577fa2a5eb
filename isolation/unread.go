package isolation

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
)

// KeepUnread adds to the desired slices what the observed ones allow on GPUs that could not be read: nothing is known of these,
// and rules without them would revoke them from their leases. What the rules allow on other GPUs is as desired. keeps selects
// the slices that may use such a GPU.
func KeepUnread(
	h *Hardware, desired []cgroup.Slice, observed []cgroup.SliceState, unread map[gpu.UUID]bool, keeps func(cgroup.SliceName) bool,
) {
	var of func(r cgroup.DeviceRule) bool
	for i := range desired {
		s := &desired[i]
		j := slices.IndexFunc(observed, func(o cgroup.SliceState) bool { return o.Name == s.Name })
		if j < 0 || !keeps(s.Name) {
			continue
		}
		if of == nil {
			of = ofUnread(h, unread)
		}
		if kept := slices.DeleteFunc(slices.Clone(observed[j].Devices), func(r cgroup.DeviceRule) bool { return !of(r) }); len(kept) > 0 {
			s.Devices = cgroup.SortRules(slices.Concat(s.Devices, kept, shared(observed[j].Devices, h)))
			s.Limits.CPUs = observed[j].Limits.CPUs // The NUMA node of the GPU is unknown too.
		}
	}
}

// ofUnread reports for a rule whether it belongs to a GPU that could not be read: it is a node of a GPU, and of none that was
// read.
func ofUnread(h *Hardware, unread map[gpu.UUID]bool) func(r cgroup.DeviceRule) bool {
	type device struct{ major, minor uint32 }
	caps := map[uint32]bool{}
	read := map[device]bool{{gpuMajor, controlMinor}: true}
	for i := range h.GPUs {
		id := &h.GPUs[i].Identity
		if unread[id.UUID] || id.Minor < 0 {
			continue
		}
		read[device{gpuMajor, uint32(id.Minor)}] = true
		for name, n := range h.Host.Caps {
			var minor int
			if _, err := fmt.Sscanf(name, "gpu%d/", &minor); err == nil && minor == id.Minor {
				caps[n] = true
			}
		}
	}
	capsMajor, hasCaps := h.Host.Majors[capsDriver]
	return func(r cgroup.DeviceRule) bool {
		switch {
		case r.Type != 'c':
			return false
		case r.Major == gpuMajor:
			return !read[device{r.Major, r.Minor}]
		}
		return hasCaps && r.Major == capsMajor && !caps[r.Minor]
	}
}

// shared are the rules that every target has.
func shared(rules []cgroup.DeviceRule, h *Hardware) []cgroup.DeviceRule {
	uvm, ok := h.Host.Majors[uvmDriver]
	return slices.DeleteFunc(slices.Clone(rules), func(r cgroup.DeviceRule) bool {
		return r.Type != 'c' || !(r.Major == gpuMajor && r.Minor == controlMinor || ok && r.Major == uvm)
	})
}
