package metrics

import (
	"testing"

	"github.com/gpushare/gpushare/api"
)

// TestSumsOfShares checks that a sum of which a part was not measured is unknown, in whatever order the leases are.
func TestSumsOfShares(t *testing.T) {
	known := api.LeaseShare{Busy: ptr(30.0), Occupancy: ptr(28.0), Due: ptr(30.0), State: api.ShareMet}
	less := api.LeaseShare{Busy: ptr(10.0), Occupancy: ptr(9.0), Due: ptr(30.0), State: api.ShareLess}
	unknown := api.LeaseShare{Due: ptr(30.0), State: api.ShareUnmeasured}
	unmet := api.LeaseShare{Busy: ptr(5.0), Occupancy: ptr(5.0), Due: ptr(30.0), State: api.ShareUnmet}
	idle := api.LeaseShare{Busy: ptr(0.0), Occupancy: ptr(0.0), State: api.ShareLess}
	for name, c := range map[string]struct {
		leases []api.LeaseShare
		busy   *float64
		met    *bool
	}{
		"each is met":                {[]api.LeaseShare{known, less, idle}, ptr(40.0), new(true)},
		"one was not measured":       {[]api.LeaseShare{known, unknown, less}, nil, nil},
		"the first was not":          {[]api.LeaseShare{unknown, known}, nil, nil},
		"one is not met":             {[]api.LeaseShare{unmet, known}, ptr(35.0), new(false)},
		"one is not, one is unknown": {[]api.LeaseShare{unknown, unmet, known}, nil, new(false)},
	} {
		t.Run(name, func(t *testing.T) {
			s := shareSum{enforced: true}
			for i := range c.leases {
				s.add(&c.leases[i])
			}
			if (s.busy == nil) != (c.busy == nil) || s.busy != nil && *s.busy != *c.busy || (s.occupancy == nil) != (c.busy == nil) {
				t.Errorf("busy %v, want %v; occupancy %v", s.busy, c.busy, s.occupancy)
			}
			if (s.met == nil) != (c.met == nil) || s.met != nil && *s.met != *c.met {
				t.Errorf("met %v, want %v", s.met, c.met)
			}
		})
	}
}
