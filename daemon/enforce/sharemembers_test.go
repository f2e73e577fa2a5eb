package enforce

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// A lease that has a share of its own divides the time by that, and not with the other leases of its grant.
func TestLeaseWithAShareOfItsOwnDividesByIt(t *testing.T) {
	t.Parallel()
	grant := lease.Grant{
		Tenant: "pods",
		Spec:   api.GrantSpec{Name: "parts", Timeslice: &api.ShareSpec{Share: 80, Cap: new(api.Percent(40))}},
	}
	own := func(id string, share float64) *lease.Lease {
		return &lease.Lease{ID: id, Terms: grant, Own: lease.Own{Share: share}, OwnTogether: lease.Own{Share: 60}}
	}
	for _, c := range []struct {
		name       string
		lease      *lease.Lease
		group      string
		share, cap float64
	}{
		{"its own", own("more", 40), "pods/parts/more", 40, 0.2},
		{"of another one", own("less", 20), "pods/parts/less", 20, 0.1},
		{"what is left to those without", own("rest", 0), "pods/parts", 20, 0.1},
		{"without shares of their own", &lease.Lease{ID: "one", Terms: grant}, "pods/parts", 80, 0.4},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := dividing(c.lease); got != c.group {
				t.Errorf("it divides with %s, want %s", got, c.group)
			}
			if got := c.lease.Share(); got != c.share {
				t.Errorf("its share is %g, want %g", got, c.share)
			}
			if got := capOf(c.lease); got == nil || *got < c.cap-1e-9 || *got > c.cap+1e-9 {
				t.Errorf("its cap is %v, want %g", got, c.cap)
			}
		})
	}
}
