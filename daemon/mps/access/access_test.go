package access

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
)

const (
	gpuA = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")
	gpuB = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000bb")
)

// Members of tenants with a grant of MPS that may be used on the GPU, and users of its leases, reach it.
func TestReach(t *testing.T) {
	s, err := spec.Decode("node.yaml", []byte(`version: v1
node: {enforce: on}
gpus: [{select: {index: 0}, mode: mps}, {select: {index: 1}, mode: mps}]
tenants:
  - name: any
    members: {users: [a], groups: [g]}
    grants: [{name: join, mps: {share: 10%, gpu_memory: 1GiB}}]
  - name: second
    members: {users: [b]}
    grants: [{name: join, mps: {share: 10%, gpu_memory: 1GiB}, gpus: {index: 1}}]
  - name: other
    members: {users: [c]}
    grants: [{name: whole, exclusive: 1}]
`))
	if err != nil {
		t.Fatal(err)
	}
	s.Normalize()
	want := state.DesiredOf(s, spec.Resolved{Grants: map[string][]gpu.UUID{spec.GrantKey("second", "join"): {gpuB}}}, 1)
	members := []server.TenantMembers{
		{Name: "any", UIDs: []int{1000}, GIDs: []int{50}},
		{Name: "second", UIDs: []int{1001, 1000}},
		{Name: "other", UIDs: []int{1002}},
		{Name: "removed", UIDs: []int{1003}},
	}
	join := lease.Grant{Tenant: "any", Spec: api.GrantSpec{Name: "join", MPS: &api.ShareSpec{}}}
	live := []lease.Lease{
		{ID: "1", UID: 1004, Terms: join, Place: lease.Place{GPUs: []gpu.UUID{gpuA}}},
		{ID: "2", UID: 0, Terms: join, Place: lease.Place{GPUs: []gpu.UUID{gpuB}}},
		{
			ID:    "3",
			UID:   1005,
			Terms: lease.Grant{Tenant: "other", Spec: api.GrantSpec{Name: "whole"}},
			Place: lease.Place{GPUs: []gpu.UUID{gpuA}},
		},
	}
	a := Access{Identities: &server.Identities{Names: &names.Directory{}}}
	for id, reach := range map[gpu.UUID]control.Reach{
		gpuA: {Users: []int{1000, 1004}, Groups: []int{50}},
		gpuB: {Users: []int{1000, 1001}, Groups: []int{50}},
	} {
		if got := a.reach(t.Context(), want, members, live, nil, mps.Whole(id)); !reflect.DeepEqual(got, reach) {
			t.Errorf("%s: %+v, want %+v", id, got, reach)
		}
	}
}

// A connection is stopped two seconds after it was found for the first time, and not counted again in between.
func TestAConnectionIsKnownUntilItEnds(t *testing.T) {
	var b blocked
	c, now := connection{mps.Whole(gpuA), 7}, time.Unix(1e9, 0)
	check := func(found bool) (since time.Time, known bool) {
		b.begin()
		if found {
			since, known = b.add(c, api.Condition{}, now)
		}
		now = now.Add(time.Second)
		return since, known
	}
	first := now
	for i, found := range []bool{true, true, true, false, true} {
		since, known := check(found)
		switch wantKnown := i == 1 || i == 2; {
		case found && known != wantKnown:
			t.Errorf("check %d: known is %v", i, known)
		case wantKnown && !since.Equal(first):
			t.Errorf("check %d: since %v, want %v", i, since, first)
		}
	}
}

// The daemon's own processes and root's are named and kept.
func TestWhatIsKept(t *testing.T) {
	rep := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	a := Access{Reporter: rep, Identities: server.NewIdentities(rep, &loop.Group{}, servertest.UidSelf, "off")}
	for uid, kept := range map[int]bool{0: true, -1: true, 33: true, servertest.UidSelf: false, 1000: false} {
		if _, keeps := a.describe(nil, &control.Peer{UID: uid}); (keeps != "") != kept {
			t.Errorf("a process of uid %d that cannot be found: %q", uid, keeps)
		}
	}
}
