package planner

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/lease"
)

// specOf is a spec with these grants, each as "tenant/grant".
func specOf(names ...string) *state.Desired {
	d := &state.Desired{
		Generation: 2, Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}}, Grants: map[state.GrantKey][]gpu.UUID{},
	}
	for _, n := range names {
		tenant, grant, _ := strings.Cut(n, "/")
		if _, ok := d.Tenant(tenant); !ok {
			d.Spec.Tenants = append(d.Spec.Tenants, api.TenantSpec{Name: tenant})
		}
		t := &d.Spec.Tenants[len(d.Spec.Tenants)-1]
		t.Grants = append(t.Grants, api.GrantSpec{Name: grant})
		d.Grants[state.GrantKey{Tenant: tenant, Grant: grant}] = nil
	}
	return d
}

func leaseIn(id, tenant, grant string, slice lease.Key) lease.Lease {
	return lease.Lease{ID: id, State: lease.Running, Terms: lease.Grant{Tenant: tenant, Spec: api.GrantSpec{Name: grant}}, Slice: slice}
}

// A name that leases have in their cgroup slices is given to no other tenant or grant until they have ended.
func TestNamesInUse(t *testing.T) {
	train := lease.Key{Tenant: "vision", Grant: "train"}
	live := []lease.Lease{
		leaseIn("a", "imaging", "large", train),
		leaseIn("b", "imaging", "dev", lease.Key{Tenant: "vision", Grant: "dev"}),
	}
	of := []lease.Lease{leaseIn("a", "vision", "large", train)}
	for name, c := range map[string]struct {
		want *state.Desired
		live []lease.Lease
		text string
	}{
		"another name":                                       {specOf("imaging/large", "imaging/dev", "other/train"), live, ""},
		"the name of the tenant":                             {specOf("imaging/large", "imaging/dev", "vision/train"), live, "tenant vision: tenant imaging, which had this name before, and 2 leases run"},
		"when they have ended":                               {specOf("imaging/large", "imaging/dev", "vision/train"), nil, ""},
		"the name of the grant":                              {specOf("vision/large", "vision/train"), of, "grant train: grant large of vision, which had this name before, and 1 lease runs"},
		"its grants are as before":                           {specOf("imaging/large", "imaging/dev"), live, ""},
		"the name of the grant of a tenant that was renamed": {specOf("imaging/large", "imaging/train"), live, "grant train: grant large of imaging, which had this name before, and 1 lease runs"},
		"renamed back":                                       {specOf("vision/train"), []lease.Lease{leaseIn("a", "vision", "train", lease.Key{})}, ""},
		"its tenant is not there":                            {specOf("vision/train"), live, ""},
		"its grant is not there":                             {specOf("vision/train"), of, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := NamesInUse(c.want, c.live)
			if (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("it is %v", err)
			}
		})
	}
}

// A lease whose tenant is renamed and whose grant is not in the spec any more ends, as without the rename.
func TestLeaseEndsUnderItsNewName(t *testing.T) {
	now, want := specOf("vision/train", "vision/dev"), specOf("imaging/large")
	want.Renames = rename.List{
		{Generation: 2, From: rename.Name{Tenant: "vision"}, To: rename.Name{Tenant: "imaging"}},
		{Generation: 2, From: rename.Name{Tenant: "vision", Grant: "train"}, To: rename.Name{Tenant: "imaging", Grant: "large"}},
	}
	live := []lease.Lease{leaseIn("a", "imaging", "large", lease.Key{}), leaseIn("b", "imaging", "dev", lease.Key{})}
	ends := LeaseEnds(now, want, live, nil)
	if len(ends) != 1 || ends[0].Lease != "b" || ends[0].Tenant != "imaging" {
		t.Errorf("these end: %+v", ends)
	}
}

func TestRenamesOfAPlan(t *testing.T) {
	recorded := rename.List{
		{Generation: 2, From: rename.Name{Tenant: "vision"}, To: rename.Name{Tenant: "imaging"}},
		{Generation: 2, From: rename.Name{Tenant: "vision", Grant: "train"}, To: rename.Name{Tenant: "imaging", Grant: "large"}},
		{Generation: 2, From: rename.Name{Tenant: "idle"}, To: rename.Name{Tenant: "busy"}},
	}
	live := []lease.Lease{leaseIn("a", "imaging", "large", lease.Key{}), leaseIn("b", "imaging", "dev", lease.Key{})}
	waits := []api.Lease{
		{Tenant: "vision", Grant: "train", State: api.LeaseQueued},
		{Tenant: "vision", Grant: "dev", State: api.LeaseRunning},
	}
	var got []string
	for _, r := range Renames(recorded, live, waits) {
		got = append(got, r.Text)
	}
	want := "rename tenant vision to imaging: 2 leases go on, 1 request waits on; " +
		"rename grant train of imaging to large: 1 lease goes on, 1 request waits on; rename tenant idle to busy"
	if strings.Join(got, "; ") != want {
		t.Errorf("the plan says %q", got)
	}
}
