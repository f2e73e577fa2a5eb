package isolation

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
)

// Tenant is what a tenant's walls are made from.
type Tenant struct {
	Name    string
	Limits  cgroup.Limits // of the tenant as a whole
	Near    string        // "gpu": each grant runs on the CPUs of its GPUs' NUMA nodes; "strict": their memory too, of each lease: see MemoryNear
	Classes []string      // of devices: rdma, fuse, dri
	Grants  []Grant
}

// Grant is what a grant may open now.
type Grant struct {
	Name    string
	Targets []Target
}

// Missing is something that was asked for and that a slice does not get.
type Missing struct {
	Slice cgroup.SliceName
	Text  string
}

// Desired is the slices that the tenants should have on this hardware, each tenant's before its grants', and what they
// lack. A tenant without grants has its slice and its limits too. A target that cannot be allowed for now is left out
// and named: the slice is only the outer wall, and a lease that needs the target is refused by Rules.
func Desired(h *Hardware, tenants []Tenant) ([]cgroup.Slice, []Missing) {
	var out []cgroup.Slice
	var missing []Missing
	allowed := memo{h: h, known: map[memoKey]allowance{}}
	for _, t := range tenants {
		outer := cgroup.Slice{Name: cgroup.SliceName{Tenant: t.Name}, Limits: t.Limits, Closed: true}
		var grants []cgroup.Slice
		say := func(name cgroup.SliceName, texts ...string) {
			for _, s := range texts {
				if m := (Missing{name, s}); !slices.Contains(missing, m) {
					missing = append(missing, m)
				}
			}
		}
		// The classes are the tenant's, so they are looked for once, and a lack of them is told once.
		classes, lacking, _ := Rules(h, nil, t.Classes) // without targets it cannot fail
		say(outer.Name, lacking...)
		for _, g := range t.Grants {
			inner := cgroup.Slice{Name: cgroup.SliceName{Tenant: t.Name, Grant: g.Name}, Closed: true, Devices: slices.Clone(classes)}
			for _, target := range g.Targets {
				a := allowed.of(target)
				say(inner.Name, a.lacking...)
				if a.err != nil {
					say(inner.Name, a.err.Error())
				}
				inner.Devices = append(inner.Devices, a.rules...)
			}
			inner.Devices = makeable(cgroup.SortRules(inner.Devices))
			outer.Devices = append(outer.Devices, inner.Devices...)
			if t.Near != "" {
				cpus, why := near(h, g.Targets)
				inner.Limits.CPUs = cpus
				if why != "" {
					say(inner.Name, why)
				}
			}
			grants = append(grants, inner)
		}
		outer.Devices = makeable(cgroup.SortRules(append(outer.Devices, classes...)))
		out = append(append(out, outer), grants...)
	}
	return out, missing
}

// makeable lets the nodes also be made in a slice: a container runtime makes those of its container from inside it. Only
// root can, and what it makes opens nothing that the slice does not. A lease's own rules stay as they are.
func makeable(rules []cgroup.DeviceRule) []cgroup.DeviceRule {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Access += "m"
	}
	return cgroup.SortRules(rules)
}

// memo works the rules of each target out once: many grants share the same instances.
type memo struct {
	h     *Hardware
	known map[memoKey]allowance
}

type memoKey struct {
	gpu   gpu.UUID
	at    gpu.Placement
	whole bool
}

type allowance struct {
	rules   []cgroup.DeviceRule
	lacking []string
	err     error
}

func (m memo) of(t Target) allowance {
	key := memoKey{gpu: t.GPU, whole: t.Instance == nil}
	if t.Instance != nil {
		key.at = *t.Instance
	}
	a, ok := m.known[key]
	if !ok {
		a.rules, a.lacking, a.err = Rules(m.h, []Target{t}, nil)
		m.known[key] = a
	}
	return a
}

// MemoryNear is the NUMA nodes of the GPUs, as "0-1", for a lease that is on these; why tells what it could not find out.
// A host with one NUMA node has nothing to choose.
func MemoryNear(h *Hardware, gpus []gpu.UUID) (list, why string) {
	if len(h.Host.CPUs) < 2 {
		return "", ""
	}
	var nodes []int
	for _, id := range gpus {
		d, ok := h.gpu(id)
		if !ok || d.Identity.NUMANode < 0 {
			return "", fmt.Sprintf("cpu.near: strict: memory is not bound: the NUMA node of GPU %s is not known", id)
		}
		nodes = append(nodes, d.Identity.NUMANode)
	}
	slices.Sort(nodes)
	return cgroup.FormatCPUs(slices.Compact(nodes)), ""
}

// near is the CPUs next to the targets' GPUs; why tells what it could not find out. A host with one NUMA node has
// nothing to choose.
func near(h *Hardware, targets []Target) (cpus, why string) {
	if len(h.Host.CPUs) < 2 || len(targets) == 0 {
		return "", ""
	}
	var nodes []int
	for _, t := range targets {
		d, ok := h.gpu(t.GPU)
		if !ok {
			continue // said already: it cannot be allowed
		}
		if d.Identity.NUMANode < 0 {
			return "", fmt.Sprintf("cpu.near: the NUMA node of GPU %s is not known", t.GPU)
		}
		nodes = append(nodes, d.Identity.NUMANode)
	}
	if len(nodes) == 0 {
		return "", ""
	}
	slices.SortFunc(nodes, cmp.Compare[int])
	cpus, ok := h.Host.CPUsNear(slices.Compact(nodes))
	if !ok {
		return "", fmt.Sprintf("cpu.near: the CPUs of NUMA nodes %v are not known", nodes)
	}
	return cpus, ""
}
