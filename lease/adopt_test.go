package lease

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

func TestAdopt(t *testing.T) {
	serve, dev, other := Key{"vision", "serve"}, Key{"vision", "dev"}, Key{"speech", "serve"}
	alice := func(claims ...Key) AdoptionCandidate {
		return AdoptionCandidate{Origin: OriginLogin, Name: "alice", UID: 2001, Unit: "user-2001.slice", Cgroup: "/user.slice/user-2001.slice", Claims: claims}
	}
	hub := func(claims ...Key) AdoptionCandidate {
		return AdoptionCandidate{Origin: OriginUnit, Name: "hub.service", Unit: "hub.service", Cgroup: "/system.slice/hub.service", Claims: claims}
	}
	of := func(n AdoptionCandidate, k Key) Lease {
		return Lease{ID: "l-" + k.Tenant + "-" + k.Grant, Origin: n.Origin, UID: n.UID, Unit: n.Unit, Cgroup: n.Cgroup, Terms: Grant{Tenant: k.Tenant, Spec: api.GrantSpec{Name: k.Grant}}}
	}
	moved := hub(serve)
	moved.Cgroup = "/serving.slice/hub.service"
	unsure := alice()
	unsure.MembershipUnknown = true
	tests := []struct {
		name string
		here []AdoptionCandidate
		live []Lease
		want AdoptionPlan
	}{
		{name: "nobody"},
		{name: "a login and a unit", here: []AdoptionCandidate{alice(serve), hub(dev)}, want: AdoptionPlan{Begin: []AdoptionCandidate{alice(serve), hub(dev)}}},
		{name: "a login that nobody adopts", here: []AdoptionCandidate{alice()}},
		{name: "they have their leases", here: []AdoptionCandidate{alice(serve), hub(dev)}, live: []Lease{of(alice(), serve), of(hub(), dev)}},
		{name: "two tenants want them", here: []AdoptionCandidate{alice(serve, other)}, want: AdoptionPlan{
			Disputed: map[string]string{"user-2001.slice": "the logins of alice are adopted by vision and speech: one tenant may, so none does"},
		}},
		{name: "another tenant wants them too now", here: []AdoptionCandidate{alice(serve, other)}, live: []Lease{of(alice(), serve)}, want: AdoptionPlan{
			End:      map[string]string{"l-vision-serve": "the logins of alice are adopted by vision and speech: one tenant may, so none does"},
			Disputed: map[string]string{"user-2001.slice": "the logins of alice are adopted by vision and speech: one tenant may, so none does"},
		}},
		{name: "the spec adopts them no more", here: []AdoptionCandidate{alice()}, live: []Lease{of(alice(), serve)}, want: AdoptionPlan{
			End: map[string]string{"l-vision-serve": "the spec does not adopt the logins of alice any more"},
		}},
		{name: "the directory of users does not answer", here: []AdoptionCandidate{unsure}, live: []Lease{of(alice(), serve)}},
		{name: "into another grant now", here: []AdoptionCandidate{hub(dev)}, live: []Lease{of(hub(), serve)}, want: AdoptionPlan{
			End: map[string]string{"l-vision-serve": "the spec adopts unit hub.service into dev of vision now"},
		}},
		{name: "a lease of those who are gone is left to its watcher", live: []Lease{of(alice(), serve)}},
		{name: "a unit that runs in another cgroup now", here: []AdoptionCandidate{moved}, live: []Lease{of(hub(), serve)}, want: AdoptionPlan{Begin: []AdoptionCandidate{moved}}},
		{name: "an ordinary lease of the same user", here: []AdoptionCandidate{alice(serve)}, live: []Lease{{ID: "r", UID: 2001, Cgroup: ""}}, want: AdoptionPlan{Begin: []AdoptionCandidate{alice(serve)}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := PlanAdoption(tt.here, tt.live)
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
