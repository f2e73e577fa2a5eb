package lease

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

func TestAdopt(t *testing.T) {
	serve, dev, other := Key{"vision", "serve"}, Key{"vision", "dev"}, Key{"speech", "serve"}
	alice := func(claims ...Key) AdoptionCandidate {
		return AdoptionCandidate{
			Origin: OriginLogin,
			Name:   "alice",
			UID:    2001,
			Unit:   "user-2001.slice",
			Cgroup: "/user.slice/user-2001.slice",
			Claims: claims,
		}
	}
	hub := func(claims ...Key) AdoptionCandidate {
		return AdoptionCandidate{
			Origin: OriginUnit,
			Name:   "hub.service",
			Unit:   "hub.service",
			Cgroup: "/system.slice/hub.service",
			Claims: claims,
		}
	}
	of := func(n AdoptionCandidate, k Key) Lease {
		return Lease{
			ID:     "l-" + k.Tenant + "-" + k.Grant,
			Origin: n.Origin,
			UID:    n.UID,
			Unit:   n.Unit,
			Cgroup: n.Cgroup,
			Terms:  Grant{Tenant: k.Tenant, Spec: api.GrantSpec{Name: k.Grant}},
		}
	}
	moved := hub(serve)
	moved.Cgroup = "/serving.slice/hub.service"
	unknownMembers := alice()
	unknownMembers.MembershipUnknown = true
	tests := []struct {
		name       string
		candidates []AdoptionCandidate
		live       []Lease
		want       AdoptionPlan
	}{
		{name: "no candidate"},
		{
			name:       "a login and a unit",
			candidates: []AdoptionCandidate{alice(serve), hub(dev)},
			want:       AdoptionPlan{Begin: []AdoptionCandidate{alice(serve), hub(dev)}},
		},
		{name: "a login that no tenant adopts", candidates: []AdoptionCandidate{alice()}},
		{
			name:       "both have their leases",
			candidates: []AdoptionCandidate{alice(serve), hub(dev)},
			live:       []Lease{of(alice(), serve), of(hub(), dev)},
		},
		{name: "two tenants adopt the login", candidates: []AdoptionCandidate{alice(serve, other)}, want: AdoptionPlan{
			Disputed: map[string]string{
				"user-2001.slice": "several tenants adopt the logins of alice (vision and speech): only one tenant may",
			},
		}},
		{
			name:       "a second tenant adopts the login now",
			candidates: []AdoptionCandidate{alice(serve, other)},
			live:       []Lease{of(alice(), serve)},
			want: AdoptionPlan{
				End: map[string]string{
					"l-vision-serve": "several tenants adopt the logins of alice (vision and speech): only one tenant may",
				},
				Disputed: map[string]string{
					"user-2001.slice": "several tenants adopt the logins of alice (vision and speech): only one tenant may",
				},
			},
		},
		{
			name:       "the spec does not adopt the login any more",
			candidates: []AdoptionCandidate{alice()},
			live:       []Lease{of(alice(), serve)},
			want: AdoptionPlan{
				End: map[string]string{"l-vision-serve": "the spec does not adopt the logins of alice any more"},
			},
		},
		{
			name:       "the directory of users does not answer",
			candidates: []AdoptionCandidate{unknownMembers},
			live:       []Lease{of(alice(), serve)},
		},
		{name: "into another grant now", candidates: []AdoptionCandidate{hub(dev)}, live: []Lease{of(hub(), serve)}, want: AdoptionPlan{
			End: map[string]string{"l-vision-serve": "the spec adopts unit hub.service into grant dev of tenant vision now"},
		}},
		{name: "a lease whose login has ended is left to its watcher", live: []Lease{of(alice(), serve)}},
		{
			name:       "a unit that runs in another cgroup now",
			candidates: []AdoptionCandidate{moved},
			live:       []Lease{of(hub(), serve)},
			want:       AdoptionPlan{Begin: []AdoptionCandidate{moved}},
		},
		{
			name:       "an ordinary lease of the same user",
			candidates: []AdoptionCandidate{alice(serve)},
			live:       []Lease{{ID: "r", UID: 2001, Cgroup: ""}},
			want:       AdoptionPlan{Begin: []AdoptionCandidate{alice(serve)}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := PlanAdoption(tt.candidates, tt.live)
			for _, m := range []*map[string]string{&tt.want.End, &tt.want.Disputed} {
				if *m == nil {
					*m = map[string]string{}
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
