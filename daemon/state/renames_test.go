package state

import (
	"slices"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Closures of a tenant are of its new name with the write that accepts the spec; those of others, and of renames before, stay.
func TestRecordRenames(t *testing.T) {
	s := &store.State{Closures: []store.Closure{
		{Where: store.Where{GPU: "GPU-a", Tenant: "vision"}}, {Where: store.Where{GPU: "GPU-a"}}, {Where: store.Where{Tenant: "first"}},
	}}
	before := s.Closures
	want := &Desired{Generation: 2, Renames: rename.List{
		{Generation: 1, From: rename.Name{Tenant: "first"}, To: rename.Name{Tenant: "second"}},
		{Generation: 2, From: rename.Name{Tenant: "vision"}, To: rename.Name{Tenant: "imaging"}},
	}}
	RecordRenames(s, want)
	var got []string
	for _, c := range s.Closures {
		got = append(got, c.Tenant)
	}
	if !slices.Equal(got, []string{"imaging", "", "first"}) || len(s.Renames) != 2 || before[0].Tenant != "vision" {
		t.Errorf("the closures are of %q, and %d renames are recorded; before: %+v", got, len(s.Renames), before)
	}
}

// The slices of former names: of a tenant with all of its grants, of a grant alone, and none of what has its own.
func TestFormerSlices(t *testing.T) {
	want := &Desired{Spec: &api.Spec{Tenants: []api.TenantSpec{
		{Name: "imaging", Grants: []api.GrantSpec{{Name: "large"}, {Name: "dev"}}},
		{Name: "speech", Grants: []api.GrantSpec{{Name: "test"}}},
	}}, Grants: map[GrantKey][]gpu.UUID{{"imaging", "large"}: nil, {"imaging", "dev"}: nil, {"speech", "test"}: nil}}
	of := func(tenant, grant string, slice lease.Key) lease.Lease {
		return lease.Lease{Terms: lease.Grant{Tenant: tenant, Spec: api.GrantSpec{Name: grant}}, Slice: slice}
	}
	got := FormerSlices(want, []lease.Lease{
		of(
			"imaging",
			"large",
			lease.Key{Tenant: "vision", Grant: "train"},
		),
		of("speech", "test", lease.Key{Tenant: "speech", Grant: "old"}),
		of("imaging", "dev", lease.Key{}),
		of("gone", "x", lease.Key{Tenant: "was", Grant: "x"}),
	})
	if expected := []FormerSlice{
		{cgroup.SliceName{Tenant: "speech", Grant: "old"}, GrantKey{"speech", "test"}},
		{cgroup.SliceName{Tenant: "vision"}, GrantKey{Tenant: "imaging"}},
		{cgroup.SliceName{Tenant: "vision", Grant: "dev"}, GrantKey{"imaging", "dev"}},
		{cgroup.SliceName{Tenant: "vision", Grant: "large"}, GrantKey{"imaging", "large"}},
		{cgroup.SliceName{Tenant: "vision", Grant: "train"}, GrantKey{"imaging", "large"}},
	}; !slices.Equal(got, expected) {
		t.Errorf("they are %v", got)
	}
	if k := GrantOfSlice(got, cgroup.SliceName{Tenant: "vision", Grant: "train"}); k != (GrantKey{"imaging", "large"}) {
		t.Errorf("a former slice is of %v", k)
	}
	if k := GrantOfSlice(got, cgroup.SliceName{Tenant: "imaging", Grant: "dev"}); k != (GrantKey{"imaging", "dev"}) {
		t.Errorf("a slice is of %v", k)
	}
}
