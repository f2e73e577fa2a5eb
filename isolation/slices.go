package isolation

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
)

// Tenant is the input for a tenant's slices.
type Tenant struct {
	Name    string
	Limits  cgroup.Limits // of the tenant as a whole
	NUMA    string        // "prefer": each grant runs on the CPUs of its GPUs' NUMA nodes; "strict": each lease also uses their memory, see MemoryNodes
	Classes []string      // classes of devices: rdma, fuse, dri
	Grants  []Grant
}

// Grant is what a grant may open now.
type Grant struct {
	Name    string
	Targets []Target
}

// Missing is a requested item that a slice does not get.
type Missing struct {
	Slice cgroup.SliceName
	Text  string
}

// Desired returns the desired slices of the tenants on this hardware, each tenant's before those of its grants, and what
// is missing. A tenant without grants also has a slice with limits. A target that cannot be allowed now is left out and
// reported as missing. Rules refuses a lease that needs it.
func Desired(h *Hardware, tenants []Tenant) ([]cgroup.Slice, []Missing) {
	var out []cgroup.Slice
	var missing []Missing
	allowed := &ruleCache{h: h, byTarget: map[targetKey]allowance{}}
	for _, t := range tenants {
		outer := cgroup.Slice{Name: cgroup.SliceName{Tenant: t.Name}, Limits: t.Limits, Closed: true}
		var grants []cgroup.Slice
		report := func(name cgroup.SliceName, texts ...string) {
			for _, s := range texts {
				if m := (Missing{name, s}); !slices.Contains(missing, m) {
					missing = append(missing, m)
				}
			}
		}
		// The classes belong to the tenant, so they are searched once and reported once.
		classes, lacking, _ := Rules(h, nil, t.Classes) // without targets it cannot fail
		report(outer.Name, lacking...)
		for _, g := range t.Grants {
			inner := cgroup.Slice{Name: cgroup.SliceName{Tenant: t.Name, Grant: g.Name}, Closed: true}
			all := allowed.forTargets(g.Targets, classes, slices.Contains(t.Classes, ClassDRI))
			report(inner.Name, all.lacking...)
			inner.Devices = all.rules
			outer.Devices = union(outer.Devices, inner.Devices)
			if t.NUMA != "" {
				cpus, reason := cpusNear(h, g.Targets)
				inner.Limits.CPUs = cpus
				if reason != "" {
					report(inner.Name, reason)
				}
			}
			grants = append(grants, inner)
		}
		outer.Devices = union(outer.Devices, withMknod(classes))
		out = append(append(out, outer), grants...)
	}
	return out, missing
}

// withMknod adds the permission to create the nodes: a container runtime in the slice creates those of its container. Only
// root can create nodes, and the slice's rules apply to them as well. The rules of a lease do not get it.
func withMknod(rules []cgroup.DeviceRule) []cgroup.DeviceRule {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Access += "m"
	}
	return cgroup.SortRules(rules)
}

// union returns what a or b allows. Most tenants have one grant, so one of them is often empty.
func union(a, b []cgroup.DeviceRule) []cgroup.DeviceRule {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	return cgroup.SortRules(slices.Concat(a, b))
}

// ruleCache computes the rules of each target and of each list of targets once: many grants share the same instances.
type ruleCache struct {
	h        *Hardware
	byTarget map[targetKey]allowance
	byList   []cachedList
}

// cachedList is a list of targets and classes with its allowance, including mknod.
type cachedList struct {
	targets []targetKey
	classes []cgroup.DeviceRule
	allowance
}

type targetKey struct {
	gpu   gpu.UUID
	at    gpu.Placement
	ci    gpu.UUID // empty: all of the instance
	whole bool
	dri   bool // with the nodes of class dri
}

type allowance struct {
	rules   []cgroup.DeviceRule
	lacking []string
	err     error
}

func keyOf(t Target, dri bool) targetKey {
	key := targetKey{gpu: t.GPU, ci: t.Compute, whole: t.Instance == nil, dri: dri}
	if t.Instance != nil {
		key.at = *t.Instance
	}
	return key
}

func (m *ruleCache) forTargets(targets []Target, classes []cgroup.DeviceRule, dri bool) allowance {
	for i := range m.byList {
		l := &m.byList[i]
		if slices.EqualFunc(targets, l.targets, func(t Target, k targetKey) bool { return keyOf(t, dri) == k }) &&
			slices.Equal(classes, l.classes) {
			return l.allowance
		}
	}
	l := cachedList{classes: classes}
	rules := slices.Clone(classes)
	for _, t := range targets {
		l.targets = append(l.targets, keyOf(t, dri))
		a := m.forTarget(t, dri)
		l.lacking = append(l.lacking, a.lacking...)
		if a.err != nil {
			l.lacking = append(l.lacking, a.err.Error())
		}
		rules = append(rules, a.rules...)
	}
	l.rules = withMknod(rules)
	m.byList = append(m.byList, l)
	return l.allowance
}

func (m *ruleCache) forTarget(t Target, dri bool) allowance {
	key := keyOf(t, dri)
	a, ok := m.byTarget[key]
	if !ok {
		var classes []string
		if dri {
			classes = []string{ClassDRI}
		}
		a.rules, a.lacking, a.err = Rules(m.h, []Target{t}, classes)
		m.byTarget[key] = a
	}
	return a
}

// MemoryNodes returns the NUMA nodes of a lease's GPUs, as "0-1", or the reason why they are unknown. Both are empty on a
// host with one NUMA node.
func MemoryNodes(h *Hardware, gpus []gpu.UUID) (list, reason string) {
	if len(h.Host.CPUs) < 2 {
		return "", ""
	}
	var nodes []int
	for _, id := range gpus {
		d, ok := h.gpu(id)
		if !ok || d.Identity.NUMANode < 0 {
			return "", fmt.Sprintf("cpu.numa: strict: memory is not bound: the NUMA node of GPU %s is unknown", id)
		}
		nodes = append(nodes, d.Identity.NUMANode)
	}
	slices.Sort(nodes)
	return cgroup.FormatCPUs(slices.Compact(nodes)), ""
}

// cpusNear returns the CPUs of the NUMA nodes of the targets' GPUs, or the reason why they are unknown. Both are empty on a
// host with one NUMA node.
func cpusNear(h *Hardware, targets []Target) (cpus, reason string) {
	if len(h.Host.CPUs) < 2 || len(targets) == 0 {
		return "", ""
	}
	var nodes []int
	for _, t := range targets {
		d, ok := h.gpu(t.GPU)
		if !ok {
			continue // reported by Rules
		}
		if d.Identity.NUMANode < 0 {
			return "", fmt.Sprintf("cpu.numa: the NUMA node of GPU %s is unknown", t.GPU)
		}
		nodes = append(nodes, d.Identity.NUMANode)
	}
	if len(nodes) == 0 {
		return "", ""
	}
	slices.SortFunc(nodes, cmp.Compare[int])
	cpus, ok := h.Host.CPUsOfNodes(slices.Compact(nodes))
	if !ok {
		return "", fmt.Sprintf("cpu.numa: the CPUs of NUMA nodes %v are unknown", nodes)
	}
	return cpus, ""
}
