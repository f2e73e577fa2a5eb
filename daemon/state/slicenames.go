package state

import (
	"cmp"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/lease"
)

// SliceOf is the cgroup slice of a lease: that of its grant, or one that is named as the grant was when the slice was created. A running
// process is not moved to another slice because its tenant is called otherwise now.
func SliceOf(l *lease.Lease) cgroup.SliceName { return cgroup.SliceName(l.SliceKey()) }

// FormerSlice is a cgroup slice that is named as a tenant or a grant was before a rename, and in which leases run.
type FormerSlice struct {
	Name cgroup.SliceName
	Of   GrantKey // what it belongs to now; without a grant the slice of a tenant
}

// FormerSlices are the slices of former names that the leases need, in the order of their names. In that of a tenant all of its grants
// have one: further leases join those that run, so that the limits of the tenant hold for all of them together.
func FormerSlices(want *Desired, live []lease.Lease) []FormerSlice {
	if want.Spec == nil {
		return nil
	}
	of := map[cgroup.SliceName]GrantKey{}
	for i := range live {
		s, key := live[i].SliceKey(), GrantKey(live[i].Terms.Key())
		t, known := want.Tenant(key.Tenant)
		if s == live[i].Terms.Key() || !known {
			continue
		}
		if s.Tenant != key.Tenant {
			of[cgroup.SliceName{Tenant: s.Tenant}] = GrantKey{Tenant: key.Tenant}
			for j := range t.Grants {
				name := t.Grants[j].Name
				of[cgroup.SliceName{Tenant: s.Tenant, Grant: name}] = GrantKey{key.Tenant, name}
			}
		}
	}
	for i := range live { // After those above: the name may be that of another grant now.
		s, key := live[i].SliceKey(), GrantKey(live[i].Terms.Key())
		if _, known := want.Grants[key]; known && s != live[i].Terms.Key() {
			of[cgroup.SliceName(s)] = key
		}
	}
	out := make([]FormerSlice, 0, len(of))
	for name, k := range of {
		out = append(out, FormerSlice{name, k})
	}
	slices.SortFunc(out, func(a, b FormerSlice) int {
		return cmp.Or(cmp.Compare(a.Name.Tenant, b.Name.Tenant), cmp.Compare(a.Name.Grant, b.Name.Grant))
	})
	return out
}

// GrantOfSlice is the grant, or the tenant, that a cgroup slice belongs to.
func GrantOfSlice(former []FormerSlice, name cgroup.SliceName) GrantKey {
	for i := range former {
		if former[i].Name == name {
			return former[i].Of
		}
	}
	return GrantKey(name)
}
