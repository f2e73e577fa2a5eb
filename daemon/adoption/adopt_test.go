package adoption

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

func TestAdoptsLoginsAndUnits(t *testing.T) {
	inLodges(t, func(t *testing.T, x *lodge) {
		vision := tenantOf("vision", api.Members{Users: []string{"alice"}, Groups: []string{"lab"}}, "serve", "dev")
		vision.Adopt.Units = map[string]string{"hub.service": "dev"}
		x.apply(vision)
		x.look()
		x.want("nobody is there")
		alice := x.login(2001, "alice")
		bob := x.login(2002, "bob") // by his group
		x.login(2003, "carol")      // nobody's
		x.login(0, "root")          // nobody's, though the group has him
		hub := x.put("hub.service")
		x.books.units["hub.service"] = hub.cgroup
		x.look()
		all := []string{"alice vision/serve login", "bob vision/serve login", "hub.service vision/dev unit"}
		x.want("all came", all...)
		if id, ok := x.ownerOf(alice); !ok || !strings.HasPrefix(id, "vision-serve") {
			t.Errorf("alice's process is of %q", id)
		}
		x.look()
		x.want("at the second look", all...)

		x.logout(2001)
		x.await("the lease ends with the login", 2)
		x.look()
		x.want("alice left", all[1:]...)

		vision.Adopt.Units = nil
		x.apply(vision)
		x.look()
		x.want("the unit is not adopted any more", all[1])
		if !x.lives(hub) {
			t.Error("the unit's processes were ended")
		}
		x.apply(tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve"))
		x.look()
		x.want("the tenant has another name", "bob speech/serve login")
		x.apply(tenantOf("speech", api.Members{Users: []string{"alice"}}, "serve"))
		x.look()
		x.want("bob is no member any more")
		x.apply(tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve"))
		x.look()
		x.want("he is again", "bob speech/serve login")
		nobodys := tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve")
		nobodys.Adopt = nil
		x.apply(nobodys)
		x.look()
		x.want("nobody adopts anybody")
		if !x.lives(bob) {
			t.Error("bob's processes were ended")
		}
	})
}

func TestOneUserOneTenant(t *testing.T) {
	inLodges(t, func(t *testing.T, x *lodge) {
		a := tenantOf("vision", api.Members{Users: []string{"bob"}}, "serve")
		b := tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve")
		x.apply(a, b)
		x.login(2002, "bob")
		x.look()
		x.want("both want him")
		if !x.lacks("the logins of bob are adopted by vision and speech") {
			t.Errorf("it is not said: %+v", x.Conditions.List())
		}
		b.Adopt = nil
		x.apply(a, b)
		x.look()
		x.want("one wants him", "bob vision/serve login")
		if x.lacks("bob") {
			t.Errorf("it is still said: %+v", x.Conditions.List())
		}
	})
}

func TestNoPlace(t *testing.T) {
	inLodges(t, func(t *testing.T, x *lodge) {
		v := tenantOf("vision", api.Members{Users: []string{"alice", "bob"}}, "serve")
		v.Grants[0].MaxLeases = new(1)
		x.apply(v)
		x.login(2001, "alice")
		x.login(2002, "bob")
		x.look()
		x.want("one place", "alice vision/serve login")
		if !x.lacks("the logins of bob have no lease of serve") {
			t.Errorf("it is not said: %+v", x.Conditions.List())
		}
		x.logout(2001)
		x.await("the place comes free", 0)
		x.look()
		x.want("the place came free", "bob vision/serve login")
		if x.lacks("bob") {
			t.Errorf("it is still said: %+v", x.Conditions.List())
		}
	})
}

func TestWhoeverEndedItMeantIt(t *testing.T) {
	inLodges(t, func(t *testing.T, x *lodge) {
		v := tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve")
		x.apply(v)
		alice := x.login(2001, "alice")
		x.look()
		id, _ := x.ownerOf(alice)
		if err := x.Table.Ended(t.Context(), id, "stopped by root"); err != nil {
			t.Fatal(err)
		}
		x.look()
		x.want("it was ended by name")
		x.apply(v)
		x.look()
		x.want("after the next apply", "alice vision/serve login")
	})
}

// Whose lease is found again by whoever keeps leases gets no other one.
func TestOneFoundAgainIsKept(t *testing.T) {
	inLodges(t, func(t *testing.T, x *lodge) {
		v := tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve")
		x.apply(v)
		x.login(2001, "alice")
		x.look()
		before := x.Table.Live()[0].ID
		saved, err := x.Table.State()
		if err != nil {
			t.Fatal(err)
		}
		x.die()
		x.newLife()
		if err := x.Table.Restore(saved); err != nil {
			t.Fatal(err)
		}
		for _, l := range x.Table.Live() {
			if _, err := x.Visitors.Recover(t.Context(), scopeOf(&l, l.Process)); err != nil {
				t.Errorf("%s is not found again: %v", l.ID, err)
			}
			x.Leases.WatchLease(l.ID)
		}
		x.apply(v)
		x.look()
		x.want("found again", "alice vision/serve login")
		if now := x.Table.Live()[0].ID; now != before {
			t.Errorf("%s became %s", before, now)
		}
		x.logout(2001)
		x.await("the lease that was found again ends with the login", 0)
	})
}

// Who ended the lease of a login did not mean the next login of the same user.
func TestAnotherLoginIsAnother(t *testing.T) {
	inLodges(t, func(t *testing.T, x *lodge) {
		x.apply(tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve"))
		first := x.login(2001, "alice")
		x.look()
		id, _ := x.ownerOf(first)
		if err := x.Table.Ended(t.Context(), id, "stopped by root"); err != nil {
			t.Fatal(err)
		}
		x.look()
		if !x.lacks("lease " + id + " of the logins of alice was ended") {
			t.Errorf("it is not said: %+v", x.Conditions.List())
		}
		x.logout(2001)
		x.look()
		x.login(2001, "alice")
		x.look()
		x.want("she logged in anew", "alice vision/serve login")
		if x.lacks("alice") {
			t.Errorf("it is still said: %+v", x.Conditions.List())
		}
	})
}
