package state

import (
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
)

// GrantMemory is the GPU memory of a grant on one GPU, in bytes; 0 when it has no limit.
func GrantMemory(g *api.GrantSpec) uint64 {
	for _, s := range []*api.ShareSpec{g.Timeslice, g.MPS} {
		if s != nil && s.GPUMemory != nil {
			return uint64(*s.GPUMemory)
		}
	}
	return 0
}

// DesiredOf is a spec with its selectors resolved.
func DesiredOf(s *api.Spec, r spec.Resolved, generation uint64) *Desired {
	w := &Desired{Generation: generation, Spec: s, GPUs: map[gpu.UUID]*api.GPUSpec{}, Grants: map[GrantKey][]gpu.UUID{}}
	for id, entry := range r.GPUs {
		w.GPUs[id] = &s.GPUs[entry]
	}
	for i := range s.Tenants {
		for j := range s.Tenants[i].Grants {
			t, g := s.Tenants[i].Name, s.Tenants[i].Grants[j].Name
			w.Grants[GrantKey{t, g}] = r.Grants[spec.GrantKey(t, g)]
		}
	}
	return w
}

// SameResolved reports whether the selectors of one spec select the same GPUs as when it was accepted, each by the same entry.
func SameResolved(a, b *Desired) bool {
	return maps.EqualFunc(a.Grants, b.Grants, slices.Equal[[]gpu.UUID]) && maps.Equal(a.entries(), b.entries())
}

// entries is the place in the spec of the entry of each GPU.
func (d *Desired) entries() map[gpu.UUID]int {
	out := map[gpu.UUID]int{}
	for id, e := range d.GPUs {
		for i := range d.Spec.GPUs {
			if e == &d.Spec.GPUs[i] {
				out[id] = i
			}
		}
	}
	return out
}

// UnmanagedOf is when and by whom the node was unmanaged; nil when a spec was applied since.
func UnmanagedOf(acc *store.Accepted) *api.Unmanaged {
	if acc.Unmanaged == "" {
		return nil
	}
	return &api.Unmanaged{By: acc.By, At: acc.At, All: acc.Unmanaged == store.UnmanagedAll}
}
