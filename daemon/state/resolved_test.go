package state

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/spec"
)

// A spec means the same if each of its entries selects the GPUs that it selected before. Two entries may have the same mode and
// different layouts, so two GPUs that have changed places are another meaning.
func TestSameResolved(t *testing.T) {
	s := &api.Spec{
		GPUs:    []api.GPUSpec{{Mode: api.ModeMIG}, {Mode: api.ModeMIG}},
		Tenants: []api.TenantSpec{{Name: "red", Grants: []api.GrantSpec{{Name: "part"}}}},
	}
	of := func(gpus map[gpu.UUID]int, granted ...gpu.UUID) *Desired {
		return DesiredOf(s, spec.Resolved{GPUs: gpus, Grants: map[string][]gpu.UUID{spec.GrantKey("red", "part"): granted}}, 1)
	}
	was := of(map[gpu.UUID]int{"GPU-a": 0, "GPU-b": 1}, "GPU-a", "GPU-b")
	for _, c := range []struct {
		name string
		now  *Desired
		same bool
	}{
		{"the same", of(map[gpu.UUID]int{"GPU-a": 0, "GPU-b": 1}, "GPU-a", "GPU-b"), true},
		{"two have changed places", of(map[gpu.UUID]int{"GPU-a": 1, "GPU-b": 0}, "GPU-a", "GPU-b"), false},
		{"one is another", of(map[gpu.UUID]int{"GPU-a": 0, "GPU-c": 1}, "GPU-a", "GPU-b"), false},
		{"one is missing", of(map[gpu.UUID]int{"GPU-a": 0}, "GPU-a", "GPU-b"), false},
		{"a grant may use others", of(map[gpu.UUID]int{"GPU-a": 0, "GPU-b": 1}, "GPU-a"), false},
	} {
		if is := SameResolved(was, c.now); is != c.same {
			t.Errorf("%s: %v", c.name, is)
		}
	}
}
