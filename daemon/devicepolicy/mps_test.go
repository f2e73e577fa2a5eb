package devicepolicy

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// The processes of a lease with amounts of its own are limited to those, and the processes of the others to the rest.
func TestLimitsOfOwnAmounts(t *testing.T) {
	t.Parallel()
	terms := lease.Grant{Spec: api.GrantSpec{MPS: &api.ShareSpec{Share: 60, GPUMemory: new(api.Bytes(12 << 30))}}}
	own := lease.Own{Memory: 8<<30 + 5, Share: 40}
	for name, c := range map[string]struct {
		own, together lease.Own
		want          mps.Limits
	}{
		"all of the grant": {want: mps.Limits{Threads: 60, Memory: 12 << 30}},
		"its own":          {own, own, mps.Limits{Threads: 40, Memory: 8 << 30}},
		"next to one":      {together: own, want: mps.Limits{Threads: 20, Memory: 4<<30 - 1<<20}},
		"nothing is left":  {together: lease.Own{Memory: 12 << 30, Share: 60}, want: mps.Limits{Threads: 1, Memory: 1 << 20}},
	} {
		l := lease.Lease{Terms: terms, Own: c.own, OwnTogether: c.together}
		if got := limitsOf(&l); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
