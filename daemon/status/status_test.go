package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/store/storetest"
)

// twoTenants returns a node on which two tenants share GPUs. Everything that belongs to a tenant has its name in it.
func twoTenants() *statusInputs {
	memory := func(b uint64) *uint64 { return &b }
	spec := &api.Spec{Node: api.NodeSpec{Enforce: "on"}}
	want := &state.Desired{Generation: 3, Spec: spec, GPUs: map[gpu.UUID]*api.GPUSpec{
		"GPU-0": {
			Mode: api.ModeMIG,
			MIG:  &api.MIGSpec{Layout: api.LayoutOf("3g.20gb", "3g.20gb")},
		},
		"GPU-1": {Mode: api.ModeTimeslice},
		"GPU-2": {Mode: api.ModeExclusive},
	}, Grants: map[state.GrantKey][]gpu.UUID{}}
	p := &statusInputs{
		sampled: func(gpu.UUID) bool { return false },
		host:    "h", adapter: "cgroupfs", now: time.Unix(1000, 0), desired: want, granted: map[gpu.UUID][]api.GrantedMemory{},
		limits:  map[string][]api.LimitStatus{},
		foreign: func(gpu.UUID, *gpu.Instance) bool { return false }, servesMPS: attribution.IsServingMPS,
	}
	n := &observe.Node{GPUs: []observe.GPU{
		{
			Snapshot: gpu.Snapshot{
				Identity: gpu.Identity{UUID: "GPU-0", Index: 0},
				MIG:      gpu.MIGState{Capable: true, Current: true, Pending: true},
			},
			Profiles: observetest.A100(),
		},
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-1", Index: 1}}},
		{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-2", Index: 2}}},
	}}
	leases := map[int]string{}
	for i, tenant := range []string{"mine", "theirs"} {
		spec.Tenants = append(
			spec.Tenants,
			api.TenantSpec{Name: tenant, Members: api.Members{Users: []string{"user-of-" + tenant}}, Grants: []api.GrantSpec{
				{Name: "mig-of-" + tenant, MIG: "3g.20gb"}, {Name: "part-of-" + tenant, Timeslice: &api.ShareSpec{Share: 50}},
			}},
		)
		want.Grants[state.GrantKey{Tenant: tenant, Grant: "mig-of-" + tenant}] = []gpu.UUID{"GPU-0"}
		want.Grants[state.GrantKey{Tenant: tenant, Grant: "part-of-" + tenant}] = []gpu.UUID{"GPU-1"}
		device := gpu.UUID(fmt.Sprint("MIG-", i))
		n.GPUs[0].Instances = append(n.GPUs[0].Instances, gpu.Instance{
			ID:        uint32(i),
			ProfileID: 9,
			Placement: gpu.Placement{Start: uint32(4 * i), Size: 4},
			Compute:   []gpu.ComputeInstance{{UUID: device}},
		})
		p.leases = append(
			p.leases,
			api.Lease{
				ID:      "lease-mig-" + tenant,
				Tenant:  tenant,
				Grant:   "mig-of-" + tenant,
				State:   api.LeaseRunning,
				Devices: []string{string(device)},
				Command: []string{"command-of-" + tenant},
			},
			api.Lease{
				ID:      "lease-part-" + tenant,
				Tenant:  tenant,
				Grant:   "part-of-" + tenant,
				State:   api.LeaseRunning,
				Command: []string{"command-of-" + tenant},
			},
			api.Lease{
				ID:      "lease-wait-" + tenant,
				Tenant:  tenant,
				Grant:   "part-of-" + tenant,
				State:   api.LeaseQueued,
				Command: []string{"command-of-" + tenant},
			},
		)
		pid := 100 + i
		leases[pid] = "lease-part-" + tenant
		n.GPUs[1].Processes = append(n.GPUs[1].Processes, gpu.Process{PID: pid, Kind: gpu.ComputeProcess, Memory: memory(1)})
		p.granted["GPU-1"] = append(p.granted["GPU-1"], api.GrantedMemory{Tenant: tenant, Grant: "part-of-" + tenant, Bytes: 1})
		p.limits[tenant] = []api.LimitStatus{{Name: "tasks", Desired: "limit-of-" + tenant}}
		p.conditions = append(p.conditions, api.Condition{Kind: "not-enforced", Tenant: tenant, Message: "condition-of-" + tenant})
	}
	p.users = []api.UserStatus{
		{User: "user-of-mine", UID: servertest.UidAlice, Leases: 7},
		{User: "user-of-theirs", UID: 1 << 20, Leases: 8},
	}
	p.conditions = append(
		p.conditions,
		api.Condition{Kind: "gpu", GPU: "GPU-2", Message: "GPU-2 is lost"},
		api.Condition{Kind: "not-enforced", Message: "for-all"},
		api.Condition{
			Kind:    "of-a-later-version",
			Message: "it names theirs",
		},
		api.Condition{Kind: "of-a-later-version", GPU: "GPU-1", Message: "it names theirs"},
		api.Condition{Kind: "drift", GPU: "GPU-1", Message: "an apply would stop lease-part-theirs"},
		api.Condition{Kind: "unknown-member", Tenant: "theirs", Message: "this host does not know user-of-theirs"},
		api.Condition{Kind: "held", GPU: "GPU-1", Message: "held: it is in use by lease-part-theirs, pid 101 (command-of-theirs)"},
	)
	p.conditions[0].Acknowledged = &api.Acknowledgement{By: "admin-of-theirs", Reason: "because of theirs"} // of mine
	p.closures = closing.Closures{
		{
			Where:  closing.OnGPU("GPU-1"),
			Kind:   string(closing.Held),
			Reason: "it is in use by lease-part-theirs, pid 101 (command-of-theirs)",
		},
		{Where: closing.OnGPU("GPU-1"), Kind: string(closing.Cordoned), By: "admin-of-theirs", Reason: "because of theirs"},
		{Where: store.Where{GPU: "GPU-1", Tenant: "theirs"}, Kind: string(closing.HeldBack), Faults: 3},
	}
	n.GPUs[1].Processes = append(n.GPUs[1].Processes, gpu.Process{PID: 999, Kind: gpu.ComputeProcess}) // of no tenant
	p.node = n
	p.leaseOf = func(pid int) (string, bool) { id, ok := leases[pid]; return id, ok }
	p.command = func(pid int) string {
		return map[int]string{100: "command-of-mine", 101: "command-of-theirs", 999: "command-of-no-tenant"}[pid]
	}
	return p
}

// Used, free and reserved memory are the total, whatever a driver answers, and every value has the time of its reading.
func TestMemoryAddsUp(t *testing.T) {
	p, at, busy := twoTenants(), time.Unix(990, 0), 12
	for i, m := range []gpu.Memory{{Total: 40, Reserved: 1, Used: 9, Free: 30}, {Total: 40, Used: 50, Free: 40}, {Total: 40, Used: 30, Free: 30}} {
		p.node.GPUs[i].Memory, p.node.GPUs[i].ReadAt = m, at
		for j := range p.node.GPUs[i].Instances {
			p.node.GPUs[i].Instances[j].Memory = gpu.Memory{Total: 20, Used: 4, Free: 20}
		}
	}
	p.node.GPUs[2].Utilization, p.node.GPUs[2].UtilizationReadAt = &busy, at.Add(time.Second)
	s := p.render()
	adds := func(name string, m api.GPUMemory) {
		if m.Used+m.Free+m.Reserved != m.Total {
			t.Errorf("%s: %+v does not add up", name, m)
		}
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		adds(g.UUID, g.Memory)
		if g.ReadAt == nil || !g.ReadAt.Equal(at) || (g.UtilizationReadAt != nil) != (g.Utilization != nil) {
			t.Errorf("%s: read at %v, its utilization at %v", g.UUID, g.ReadAt, g.UtilizationReadAt)
		}
		if g.MIG != nil {
			for _, in := range g.MIG.Instances {
				adds(in.Profile, in.Memory)
			}
		}
	}
	if m := s.GPUs[0].Memory; m.Reserved != 1 || m.Free != 30 {
		t.Errorf("what the driver reserves is %+v", m)
	}
}

// A check that found an acknowledged condition passes; no other check does.
func TestAcknowledgedChecksPass(t *testing.T) {
	conditions := []api.Condition{
		{Kind: "held", Message: "one", Acknowledged: &api.Acknowledgement{By: "root"}},
		{Kind: "held", Message: "two"},
		{Kind: "driver", Message: "lost", Acknowledged: &api.Acknowledgement{By: "root"}},
	}
	got := acknowledged(
		[]api.Check{
			{Name: "driver", Result: "fail", Message: "lost"},
			{Name: "held", Result: "warn", Message: "one", Hint: "h"},
			{Name: "held", Result: "warn", Message: "two"},
			{Name: "worker", Result: "fail", Message: "one"},
		},
		conditions,
	)
	for i, want := range []string{"ok", "ok", "warn", "fail"} {
		if got[i].Result != want || (got[i].Acknowledged != nil) != (want == "ok") {
			t.Errorf("check %d: %+v, want %s", i, got[i], want)
		}
	}
}

func TestMemberSeesOnlyTheirOwn(t *testing.T) {
	full := twoTenants().render()
	before, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(restrictTo(full, &server.Caller{Peer: &server.Peer{UID: servertest.UidAlice}, Tenants: []string{"mine"}}))
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{"theirs", "command-of-no-tenant", "GPU-2", "101"} {
		if strings.Contains(string(b), hidden) {
			t.Errorf("a member sees %q:\n%s", hidden, b)
		}
	}
	for _, shown := range []string{"lease-mig-mine", "lease-part-mine", "lease-wait-mine", "command-of-mine", "limit-of-mine", "condition-of-mine", "for-all", "GPU-0", "GPU-1", "MIG-0", `"leases":7`} {
		if !strings.Contains(string(b), shown) {
			t.Errorf("a member does not see %q:\n%s", shown, b)
		}
	}
	after, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Errorf("the restricted status changed the full one:\n%s\n%s", before, after)
	}
}

// With status_visible: all a member sees who has what on every GPU, and neither what others run nor their processes and limits.
func TestMemberSeesWhoHasWhat(t *testing.T) {
	p := twoTenants()
	p.desired.Spec.Node.StatusVisible = api.StatusVisibleAll
	full := p.render()
	before := string(encode(full))
	s := restrictTo(full, &server.Caller{Peer: &server.Peer{UID: servertest.UidAlice}, Tenants: []string{"mine"}})
	got := string(encode(s))
	for _, shown := range []string{"lease-mig-mine", "lease-mig-theirs", "lease-part-theirs", "lease-wait-theirs", "GPU-2"} {
		if !strings.Contains(got, shown) {
			t.Errorf("a member does not see %q:\n%s", shown, got)
		}
	}
	for _, hidden := range []string{"command-of-theirs", "command-of-no-tenant", "limit-of-theirs", "condition-of-theirs", "user-of-theirs"} {
		if strings.Contains(got, hidden) {
			t.Errorf("a member sees %q:\n%s", hidden, got)
		}
	}
	if in := s.GPUs[0].MIG.Instances[1].Lease; in != "lease-mig-theirs" {
		t.Errorf("the other instance belongs to %q", in)
	}
	if before != string(encode(full)) {
		t.Error("the restricted status changed the full one")
	}
}

// A member sees whether an instance belongs to a lease of their tenants, also before the lease runs a process.
func TestMemberSeesOwnInstances(t *testing.T) {
	p := usedInstances()
	s := restrictTo(p.render(), &server.Caller{Peer: &server.Peer{}, Tenants: []string{"mine"}})
	if i := slices.IndexFunc(s.Leases, func(l api.Lease) bool { return l.ID == "lease-mig-mine" }); i < 0 || s.Leases[i].Use == nil {
		t.Error("a lease that has an instance alone has no use")
	}
	for _, g := range s.GPUs {
		if g.UUID != "GPU-0" {
			continue
		}
		if got := []string{g.MIG.Instances[0].Lease, g.MIG.Instances[1].Lease}; got[0] != "lease-mig-mine" || got[1] != "another tenant" {
			t.Errorf("the instances belong to %v", got)
		}
		if g.MIG.Instances[0].Use == nil || g.MIG.Instances[1].Use != nil {
			t.Errorf(
				"the use of the own instance is %+v, and of the one of another tenant %+v",
				g.MIG.Instances[0].Use,
				g.MIG.Instances[1].Use,
			)
		}
	}
}

// An observer sees all but the arguments of commands.
func TestAdminAndObserverSeeEverything(t *testing.T) {
	full := twoTenants().render()
	full.Leases[0].Command = []string{"/usr/bin/python3", "train.py", "secret"}
	before := string(encode(full))
	for _, c := range []*server.Caller{{Peer: &server.Peer{}, Admin: true}, {Peer: &server.Peer{UID: 7}, Observer: true}, {Peer: &server.Peer{UID: 7}, Observer: true, Tenants: []string{"mine"}}} {
		want := before
		if !c.Admin {
			want = strings.Replace(before, `["/usr/bin/python3","train.py","secret"]`, `["python3"]`, 1)
		}
		if got := string(encode(restrictTo(full, c))); got != want {
			t.Errorf("%s sees less than all, or a whole command:\n%s\n%s", c.Role(), got, want)
		}
	}
	if string(encode(full)) != before {
		t.Error("the full status was changed")
	}
}

func TestRenderedStatusIsRestrictedPerCaller(t *testing.T) {
	p := &renderedStatus{status: twoTenants().render(), restricted: map[string][]byte{}}
	p.all = encode(p.status)
	servedTo := func(tenants ...string) string {
		return string(p.bytes(&server.Caller{Peer: &server.Peer{}, Tenants: tenants}))
	}
	for _, uid := range []int{servertest.UidAlice, 1 << 20, 0} {
		got := string(p.bytes(&server.Caller{Peer: &server.Peer{UID: uid}, Tenants: []string{"mine"}}))
		for _, u := range p.status.Users {
			if shown := strings.Contains(got, fmt.Sprintf(`"leases":%d`, u.Leases)); shown != (u.UID == uid) {
				t.Errorf("uid %d sees what uid %d has: %v", uid, u.UID, shown)
			}
		}
	}
	for range 2 { // The second time from the cache.
		if s := servedTo("mine"); strings.Contains(s, "theirs") || !strings.Contains(s, "lease-part-mine") {
			t.Errorf("a member of the first tenant is served %s", s)
		}
		if s := servedTo("theirs"); strings.Contains(s, "lease-part-mine") || !strings.Contains(s, "lease-part-theirs") {
			t.Errorf("a member of the second tenant is served %s", s)
		}
		if s := servedTo("mine", "theirs"); !strings.Contains(s, "lease-part-mine") || !strings.Contains(s, "lease-part-theirs") {
			t.Errorf("a member of both is served %s", s)
		}
	}
	if s := string(p.bytes(&server.Caller{Peer: &server.Peer{}, Admin: true})); !strings.Contains(s, "command-of-no-tenant") {
		t.Error("an administrator does not see processes of no tenant")
	}
}

// closuresOf are the closures of the node of a status whose last GPU may be in a change.
func closuresOf(t *testing.T, p *statusInputs, record func(*store.State), busy bool) closing.Closures {
	t.Helper()
	st := storetest.Open(t)
	if err := st.Update(func(s *store.State) error { record(s); return nil }); err != nil {
		t.Fatal(err)
	}
	s := state.NewState(st, false)
	s.SetDesired(p.desired)
	if busy {
		s.SetChanging(&state.OpenChange{Operation: "apply-1", GPUs: map[gpu.UUID]bool{"GPU-2": true}})
	}
	p.stored = *st.State()
	return planner.Closures(s, p.node, p.now)
}

// A GPU that is closed for several reasons has the state of the first and says all of them; the list has who closed it, and members see
// neither that nor why it is held.
func TestAllReasonsOfAClosedGPU(t *testing.T) {
	p := twoTenants()
	since := p.now.Add(-time.Hour).UTC()
	p.closures = closuresOf(t, p, func(s *store.State) {
		closing.SetHealth(s, "GPU-1", health.Record{State: health.Closed, Since: since, XID: 79, Cause: "XID 79", Failed: "rows"})
		closing.Cordoned.Close(s, store.Closure{Where: closing.OnGPU("GPU-1"), By: "root", Since: since, Reason: "its fan"})
		closing.CloseHeld(s, "GPU-1", 1, "it is in use by lease-part-theirs", "", since)
		closing.HeldBack.Close(s, store.Closure{Where: store.Where{GPU: "GPU-1", Tenant: "theirs"}, Since: since, Faults: 3})
		ended := store.Closure{Where: closing.OnGPU("GPU-2"), By: "root", Since: since, Until: p.now}
		closing.Cordoned.Close(s, ended)
	}, false)
	all := p.render()
	g := all.GPUs[1]
	const want = "it is in use by lease-part-theirs; it takes no new lease: XID 79; its test failed: rows; see 'gpushare gpu show 1'; " +
		"root closed it to new leases (its fan); 'gpushare gpu uncordon 1' ends that"
	if g.State != "held" || g.Reason != want {
		t.Errorf("it is %s: %s, want %s", g.State, g.Reason, want)
	}
	kinds := func(g *api.GPUStatus) (out []string) {
		for _, c := range g.Closures {
			out = append(out, c.Kind)
			if c.Since == nil || !c.Since.Equal(since) || c.Until != nil || c.Instance != nil {
				t.Errorf("it is closed by %+v", c)
			}
		}
		return out
	}
	if got := kinds(&g); !slices.Equal(got, []string{"held", "unhealthy", "cordoned", "held-back"}) || g.Closures[2].By != "root" {
		t.Errorf("it is closed by %+v", g.Closures)
	}
	if g := all.GPUs[2]; g.State != "ok" || g.Reason != "" || g.Closures != nil {
		t.Errorf("a GPU whose closure has ended is %s: %s, %+v", g.State, g.Reason, g.Closures)
	}
	mine := restrictTo(all, &server.Caller{Peer: &server.Peer{}, Tenants: []string{"mine"}}).GPUs[1]
	const less = "only an administrator may see the reason; it takes no new lease: XID 79; its test failed: rows; see 'gpushare gpu show 1'; " +
		"an administrator closed it to new leases"
	if got := kinds(
		&mine,
	); mine.Reason != less || !slices.Equal(got, []string{"held", "unhealthy", "cordoned"}) ||
		mine.Closures[2].By != "" {
		t.Errorf("a member sees %s, %+v", mine.Reason, mine.Closures)
	}
	if len(g.Closures) != 4 || g.Reason != want {
		t.Errorf("what an administrator sees is now %s, %+v", g.Reason, g.Closures)
	}
}

func TestStateOfAGPU(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		held   string
		busy   bool
		state  string
		reason string
	}{
		{"ok", nil, "", false, "ok", ""},
		{"held", nil, "why", false, "held", "why"},
		{"in a change", nil, "", true, "changing", ""},
		{"in a change that frees it", nil, "why", true, "changing", "why"},
		{"slow", fmt.Errorf("x: %w", gpu.ErrTimeout), "", false, "stuck", "x: " + gpu.ErrTimeout.Error()},
		{"stuck and held", gpu.ErrStuck, "why", false, "stuck", gpu.ErrStuck.Error() + "; why"},
		{"lost in a change", gpu.ErrLost, "", true, "lost", gpu.ErrLost.Error()},
		{"lost, as the driver says it", &gpu.Error{Op: "read the state", GPU: "GPU-2", Code: 15, Err: gpu.ErrLost}, "", false, "lost", gpu.ErrLost.Error()},
		{"not found", fmt.Errorf("x: %w", gpu.ErrNotFound), "", false, "lost", "x: " + gpu.ErrNotFound.Error()},
		{"it needs a reset first", gpu.ErrResetRequired, "", false, "lost", gpu.ErrResetRequired.Error()},
		// One call that fails with an error that NVML does not explain says nothing of the programs on the GPU.
		{"an unknown error of the driver", gpu.ErrUnknown, "", false, "unreadable", gpu.ErrUnknown.Error()},
		{"denied", gpu.ErrDenied, "", false, "unreadable", gpu.ErrDenied.Error()},
		{"unknown error", errors.New("unknown"), "", false, "unreadable", "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := twoTenants()
			p.node.GPUs[2].Err = c.err
			p.closures = closuresOf(t, p, func(s *store.State) {
				if c.held != "" {
					closing.CloseHeld(s, "GPU-2", 1, c.held, "", p.now)
				}
			}, c.busy)
			if g := p.render().GPUs[2]; g.State != c.state || g.Reason != c.reason {
				t.Errorf("it is %s: %q, want %s: %q", g.State, g.Reason, c.state, c.reason)
			}
		})
	}
}

func TestStatusCountsLeases(t *testing.T) {
	s := twoTenants().render()
	g := s.Tenants[0].Grants[1]
	if g.Leases != 1 || g.Queued != 1 || g.MaxLeases != 0 || s.Tenants[0].Leases != 2 || s.Tenants[0].Grants[0].MaxLeases != 1 {
		t.Errorf("the tenant shows %+v", s.Tenants[0])
	}
	if s.Node.Generation != 3 || s.Node.Enforce != "on" || s.SchemaVersion != 1 {
		t.Errorf("the node shows %+v", s.Node)
	}
	empty := &statusInputs{node: &observe.Node{}, desired: &state.Desired{}}
	b, err := json.Marshal(empty.render())
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{`"gpus":[]`, `"tenants":[]`, `"leases":[]`} {
		if !strings.Contains(string(b), list) {
			t.Errorf("an empty node lacks %s: %s", list, b)
		}
	}
}
