package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

func TestPlanStops(t *testing.T) {
	at := gpu.Placement{Start: 4, Size: 4}
	cut := lease.Lease{
		ID:    "red-cut-1",
		User:  "alice",
		Terms: lease.Grant{Tenant: "red", Spec: api.GrantSpec{Name: "cut", MIG: "3g.20gb"}},
		Place: lease.Place{GPUs: []gpu.UUID{observetest.One}, Instance: &at},
	}
	part := lease.Lease{
		ID:    "red-part-1",
		User:  "bob",
		Terms: lease.Grant{Tenant: "red", Spec: api.GrantSpec{Name: "part", Timeslice: &api.ShareSpec{Share: 30}}},
		Place: lease.Place{GPUs: []gpu.UUID{"GPU-2"}},
	}
	destroy := func(id gpu.UUID, start uint32) step.Step {
		return step.Step{
			Kind: mig.KindDestroy,
			GPU:  string(id),
			Args: step.Must(mig.InstanceArgs{Placed: mig.Placed{Placement: gpu.Placement{Start: start, Size: 4}}}),
		}
	}
	all := func() *state.Desired {
		return &state.Desired{
			GPUs: map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeMIG}, "GPU-2": {Mode: api.ModeTimeslice}},
			Grants: map[state.GrantKey][]gpu.UUID{
				{Tenant: "red", Grant: "cut"}:  {observetest.One},
				{Tenant: "red", Grant: "part"}: {"GPU-2"},
			},
		}
	}
	for _, c := range []struct {
		name     string
		want     func(*state.Desired)
		hardware []step.Step
		stops    []string // "lease: reason"
	}{
		{"nothing changes", func(*state.Desired) {}, nil, nil},
		{"another instance is removed", func(*state.Desired) {}, []step.Step{destroy(observetest.One, 0), destroy("GPU-9", 4), {Kind: mig.KindCreate, GPU: string(observetest.One)}}, nil},
		{"the instance is removed", func(*state.Desired) {}, []step.Step{destroy(observetest.One, 4)}, []string{"red-cut-1: its MIG instance is removed"}},
		{"the grant is removed", func(d *state.Desired) { delete(d.Grants, state.GrantKey{Tenant: "red", Grant: "part"}) }, nil, []string{"red-part-1: the spec no longer has grant part of red"}},
		{"the GPU has another mode", func(d *state.Desired) { d.GPUs["GPU-2"] = &api.GPUSpec{Mode: api.ModeExclusive} }, nil, []string{"red-part-1: its GPU becomes exclusive"}},
		{"the grant no longer has the GPU", func(d *state.Desired) {
			d.Grants[state.GrantKey{Tenant: "red", Grant: "part"}] = []gpu.UUID{observetest.One}
		}, nil, []string{"red-part-1: grant part of red may no longer use its GPU"}},
		{"the spec does not name the GPU", func(d *state.Desired) { delete(d.GPUs, observetest.One) }, nil, []string{"red-cut-1: its GPU becomes unmanaged"}},
		{"there is no spec", func(d *state.Desired) { *d = state.Desired{} }, nil, []string{"red-cut-1: the spec no longer has grant", "red-part-1: the spec no longer has grant"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := all()
			c.want(want)
			var got []string
			for _, s := range PlanStops(want, &observe.Node{}, []lease.Lease{cut, part}, c.hardware, nil) {
				got = append(got, strings.TrimPrefix(s.Text, "stop lease ")+": "+s.Reason)
				if s.Disruption != step.Running || len(s.Disturbs) != 1 || s.Phase != step.RevokeAccess || s.GPU != "" {
					t.Errorf("the step is %+v", s)
				}
			}
			if !slices.EqualFunc(got, c.stops, strings.HasPrefix) {
				t.Errorf("stops %q, want %q", got, c.stops)
			}
		})
	}
}

// The plan names the leases of users about whom the directory does not answer: they may be those of removed members.
func TestUnsureWarnings(t *testing.T) {
	of := func(id, user string, uid int, tenant string) lease.Lease {
		return lease.Lease{ID: id, User: user, UID: uid, Terms: lease.Grant{Tenant: tenant}}
	}
	login := of("red-login-1", "alice", 1001, "red")
	login.Origin = lease.OriginLogin
	live := []lease.Lease{
		of("red-a-1", "alice", 1001, "red"),
		of("red-b-1", "bob", 1002, "red"),
		of("red-a-2", "alice", 1001, "red"),
		of("gone-a-1", "alice", 1001, "gone"),
		login,
	}
	want := &state.Desired{Spec: &api.Spec{Tenants: []api.TenantSpec{{Name: "red"}}}}
	got := UnsureWarnings(want, live, []int{1001})
	text := "this host's directory does not answer: it is not known whether the users of 2 leases of tenant red are still members of it: red-a-1 (alice), red-a-2 (alice)"
	if !slices.Equal(got, []string{text}) {
		t.Errorf("got %q, want %q", got, text)
	}
	if got := UnsureWarnings(want, live, nil); len(got) != 0 {
		t.Errorf("without such a user: %q", got)
	}
}
