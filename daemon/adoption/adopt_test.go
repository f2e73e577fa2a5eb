package adoption

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

func TestAdoptsLoginsAndUnits(t *testing.T) {
	withFixtures(t, func(t *testing.T, x *fixture) {
		vision := tenantOf("vision", api.Members{Users: []string{"alice"}, Groups: []string{"lab"}}, "serve", "dev")
		vision.Adopt.Units = map[string]string{"hub.service": "dev"}
		x.apply(vision)
		x.adopt()
		x.wantAdopted("no login")
		alice := x.login(2001, "alice")
		bob := x.login(2002, "bob") // by group
		x.login(2003, "carol")      // of no tenant
		x.login(0, "root")          // not adopted, although a member of the group
		hub := x.startProcess("hub.service")
		x.sessions.units["hub.service"] = hub.cgroup
		x.adopt()
		all := []string{"alice vision/serve login", "bob vision/serve login", "hub.service vision/dev unit"}
		x.wantAdopted("all are there", all...)
		if id, ok := x.leaseOf(alice); !ok || !strings.HasPrefix(id, "vision-serve") {
			t.Errorf("alice's process is in lease %q", id)
		}
		x.adopt()
		x.wantAdopted("after the second pass", all...)

		x.logout(2001)
		x.await("the lease ends with the login", 2)
		x.adopt()
		x.wantAdopted("alice has logged out", all[1:]...)

		vision.Adopt.Units = nil
		x.apply(vision)
		x.adopt()
		x.wantAdopted("the unit is not adopted any more", all[1])
		if !x.alive(hub) {
			t.Error("the unit's processes were ended")
		}
		x.apply(tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve"))
		x.adopt()
		x.wantAdopted("the tenant has another name", "bob speech/serve login")
		x.apply(tenantOf("speech", api.Members{Users: []string{"alice"}}, "serve"))
		x.adopt()
		x.wantAdopted("bob is no member any more")
		x.apply(tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve"))
		x.adopt()
		x.wantAdopted("bob is a member again", "bob speech/serve login")
		notAdopting := tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve")
		notAdopting.Adopt = nil
		x.apply(notAdopting)
		x.adopt()
		x.wantAdopted("no tenant adopts")
		if !x.alive(bob) {
			t.Error("bob's processes were ended")
		}
	})
}

func TestUserAdoptedByTwoTenants(t *testing.T) {
	withFixtures(t, func(t *testing.T, x *fixture) {
		a := tenantOf("vision", api.Members{Users: []string{"bob"}}, "serve")
		b := tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve")
		x.apply(a, b)
		x.login(2002, "bob")
		x.adopt()
		x.wantAdopted("both tenants adopt bob")
		if !x.hasCondition("several tenants adopt the logins of bob (vision and speech)") {
			t.Errorf("no condition: %+v", x.Conditions.List())
		}
		b.Adopt = nil
		x.apply(a, b)
		x.adopt()
		x.wantAdopted("one tenant adopts bob", "bob vision/serve login")
		if x.hasCondition("bob") {
			t.Errorf("the condition is still there: %+v", x.Conditions.List())
		}
	})
}

func TestAdoptionWaitsForCapacity(t *testing.T) {
	withFixtures(t, func(t *testing.T, x *fixture) {
		v := tenantOf("vision", api.Members{Users: []string{"alice", "bob"}}, "serve")
		v.Grants[0].MaxLeases = new(1)
		x.apply(v)
		x.login(2001, "alice")
		x.login(2002, "bob")
		x.adopt()
		x.wantAdopted("one place", "alice vision/serve login")
		if !x.hasCondition("no lease of grant serve for the logins of bob") {
			t.Errorf("no condition: %+v", x.Conditions.List())
		}
		x.logout(2001)
		x.await("the place comes free", 0)
		x.adopt()
		x.wantAdopted("the place came free", "bob vision/serve login")
		if x.hasCondition("bob") {
			t.Errorf("the condition is still there: %+v", x.Conditions.List())
		}
	})
}

func TestEndedLeaseIsNotAdoptedAgain(t *testing.T) {
	withFixtures(t, func(t *testing.T, x *fixture) {
		v := tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve")
		x.apply(v)
		alice := x.login(2001, "alice")
		x.adopt()
		id, _ := x.leaseOf(alice)
		if err := x.Table.Ended(t.Context(), id, "stopped by root"); err != nil {
			t.Fatal(err)
		}
		x.adopt()
		x.wantAdopted("its lease was stopped")
		x.apply(v)
		x.adopt()
		x.wantAdopted("after the next apply", "alice vision/serve login")
	})
}

// A login whose lease was recovered after a restart gets no other one.
func TestRecoveredLeaseIsKept(t *testing.T) {
	withFixtures(t, func(t *testing.T, x *fixture) {
		v := tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve")
		x.apply(v)
		x.login(2001, "alice")
		x.adopt()
		before := x.Table.Live()[0].ID
		saved, err := x.Table.State()
		if err != nil {
			t.Fatal(err)
		}
		x.stop()
		x.start()
		if err := x.Table.Restore(saved); err != nil {
			t.Fatal(err)
		}
		for _, l := range x.Table.Live() {
			if _, err := x.Attachments.Recover(t.Context(), scopeOf(&l, l.Process)); err != nil {
				t.Errorf("%s is not recovered: %v", l.ID, err)
			}
			x.Leases.WatchLease(l.ID)
		}
		x.apply(v)
		x.adopt()
		x.wantAdopted("recovered", "alice vision/serve login")
		if now := x.Table.Live()[0].ID; now != before {
			t.Errorf("%s became %s", before, now)
		}
		x.logout(2001)
		x.await("the recovered lease ends with the login", 0)
	})
}

// After the lease of a login was stopped the next login of the same user is adopted.
func TestNextLoginIsAdopted(t *testing.T) {
	withFixtures(t, func(t *testing.T, x *fixture) {
		x.apply(tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve"))
		first := x.login(2001, "alice")
		x.adopt()
		id, _ := x.leaseOf(first)
		if err := x.Table.Ended(t.Context(), id, "stopped by root"); err != nil {
			t.Fatal(err)
		}
		x.adopt()
		if !x.hasCondition("lease " + id + " of the logins of alice was ended") {
			t.Errorf("no condition: %+v", x.Conditions.List())
		}
		x.logout(2001)
		x.adopt()
		x.login(2001, "alice")
		x.adopt()
		x.wantAdopted("alice logged in again", "alice vision/serve login")
		if x.hasCondition("alice") {
			t.Errorf("the condition is still there: %+v", x.Conditions.List())
		}
	})
}

// The groups of a login are those of its start, but a group that its user has left gives nothing any more.
func TestALoginWhoseUserLeftTheGroup(t *testing.T) {
	withFixtures(t, func(t *testing.T, x *fixture) {
		x.Identities.ChecksGroups = true
		refresh := func() {
			t.Helper()
			if err := x.Identities.Names.Refresh(t.Context(), nil, nil, true); err != nil {
				t.Fatal(err)
			}
		}
		x.apply(tenantOf("vision", api.Members{Groups: []string{"lab"}}, "serve"))
		bob := x.login(2002, "bob")
		x.adopt()
		x.wantAdopted("a member", "bob vision/serve login")
		x.write(filepath.Join(x.dir, "group"), "lab:x:3000:root\nspeakers:x:3001:carol\n")
		refresh()
		x.adopt()
		x.wantAdopted("after they left the group")
		if !x.alive(bob) {
			t.Error("the processes of the login were ended")
		}
		x.write(filepath.Join(x.dir, "group"), "lab:x:3000:bob,root\nspeakers:x:3001:carol\n")
		refresh()
		x.adopt()
		x.wantAdopted("after they are back", "bob vision/serve login")
	})
}
