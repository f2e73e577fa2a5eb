package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

func as(tab *Table, uid int, user, tenant, grant string, wait bool) (*Ticket, error) {
	r := Request{Tenant: tenant, Grant: grant, Member: []string{tenant}, UID: uid, User: user}
	if wait {
		r.Wait = new(time.Duration)
	}
	return tab.Submit(r)
}

func refused(t *testing.T, err error, kind api.Kind, text string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Kind != kind || !strings.Contains(e.Message, text) {
		t.Errorf("got %v, want %s: %s", err, kind, text)
	}
}

// A user's limit is over all tenants and grants. Others, and root, are not affected by it.
func TestPerUserLeases(t *testing.T) {
	v := lab()
	v.PerUser.Leases = 2
	tab, _ := table(t, v)
	for _, g := range []Key{{"vision", "dev"}, {"speech", "serve"}} {
		if _, err := as(tab, 1001, "alice", g.Tenant, g.Grant, false); err != nil {
			t.Fatal(err)
		}
	}
	var e *api.Error
	if _, err := as(tab, 1001, "alice", "vision", "train", false); !errors.As(err, &e) || e.Kind != api.KindUnavailable ||
		!strings.Contains(e.Message, "alice has 2 of 2 leases (per_user.leases)") {
		t.Errorf("the third gives %v", err)
	}
	waits, err := as(tab, 1001, "alice", "ml", "one", true)
	if err != nil {
		t.Fatal(err)
	}
	if got := next(t, waits).Lease.Waiting; got != "alice has 2 of 2 leases (per_user.leases)" {
		t.Errorf("it waits because %q", got)
	}
	if _, err := as(tab, 1002, "bob", "physics", "big", false); err != nil { // It claims no GPU meanwhile.
		t.Errorf("bob: %v", err)
	}
	for range 3 {
		if _, err := as(tab, 0, "root", "vision", "dev", false); err != nil {
			t.Errorf("root: %v", err)
		}
	}
	for _, l := range tab.Live() {
		if l.User == "bob" || l.Terms.Kind() == api.ModeMPS {
			if err := tab.Ended(t.Context(), l.ID, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !isPlaced(tab, waits) {
		t.Error("it still waits")
	}
}

// A lease counts for its user however it got its processes: also one that an administrator attached for the user, and a login
// that the spec adopts. A container and a unit of the service manager are root's.
func TestPerUserCountsAttachedAndAdopted(t *testing.T) {
	for _, c := range []struct {
		name   string
		r      Request
		counts int
	}{
		{"attached by its user", Request{Member: []string{"vision"}, UID: 1001, User: "alice", AttachedBy: 1001, Origin: OriginAttached, Cgroup: "/a"}, 1},
		{"attached by an administrator", Request{Admin: true, UID: 1001, User: "alice", AttachedBy: 0, Origin: OriginAttached, Cgroup: "/a"}, 1},
		{"an adopted login", Request{Admin: true, UID: 1001, User: "alice", Origin: OriginLogin, Cgroup: "/user.slice/user-1001.slice", Immediate: true}, 1},
		{"an adopted unit", Request{Admin: true, Origin: OriginUnit, Cgroup: "/system.slice/hub.service", Immediate: true}, 0},
		{"a container", Request{Admin: true, User: "root", Origin: OriginContainer, Cgroup: "/machine.slice/x", Immediate: true}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := lab()
			v.PerUser = PerUser{Leases: 2, Memory: 30 * gib}
			tab, _ := table(t, v)
			c.r.Tenant, c.r.Grant = "vision", "dev" // of 20 GiB
			k, err := tab.Submit(c.r)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := tab.Start(t.Context(), k.ID(), Process{PID: 4000, Start: 1}); err != nil {
				t.Fatal(err)
			}
			var has UserUsage
			for _, u := range tab.Users() {
				if u.UID == 1001 {
					has = u
				}
			}
			if has.Leases != c.counts || has.Memory != uint64(c.counts)*20*gib {
				t.Errorf("alice has %+v, want %d leases of 20 GiB each", has, c.counts)
			}
			_, err = as(tab, 1001, "alice", "speech", "serve", false) // 16 GiB
			if c.counts == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			refused(
				t, err, api.KindUnavailable,
				"alice has 20 GiB of 30 GiB of GPU memory, and this needs 16 GiB more (per_user.gpu_memory)",
			)
			v.PerUser = PerUser{Leases: 1}
			tab.Update(v)
			_, err = as(tab, 1001, "alice", "speech", "serve", false)
			refused(t, err, api.KindUnavailable, "alice has 1 of 1 leases (per_user.leases)")
			// It is limited by it, too.
			c.r.Cgroup = "/b"
			_, err = tab.Submit(c.r)
			refused(t, err, api.KindUnavailable, "alice has 1 of 1 leases (per_user.leases)")
			if err := tab.Ended(t.Context(), k.ID(), ""); err != nil {
				t.Fatal(err)
			}
			if _, err := as(tab, 1001, "alice", "speech", "serve", false); err != nil {
				t.Errorf("after its end: %v", err)
			}
		})
	}
}

func TestPerUserMemory(t *testing.T) {
	limited := func(memory uint64) View {
		v := lab()
		v.PerUser.Memory = memory
		return v
	}
	t.Run("a grant on a GPU counts once", func(t *testing.T) {
		v := limited(40 * gib)
		v.GPUs = append(v.GPUs[:2:2], v.GPUs[3:]...) // One time-sliced GPU.
		tab, _ := table(t, v)
		for range 3 {
			if _, err := as(tab, 1001, "alice", "vision", "dev", false); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := as(tab, 1002, "bob", "vision", "dev", false); err != nil {
			t.Fatal(err)
		}
		for _, u := range tab.Users() { // Each of them may use all of the grant's memory.
			if u.Memory != 20*gib {
				t.Errorf("%+v", u)
			}
		}
		if _, err := as(tab, 1001, "alice", "vision", "train", false); err != nil {
			t.Errorf("40 of 40 GiB: %v", err)
		}
		_, err := as(tab, 1001, "alice", "speech", "serve", false)
		refused(t, err, api.KindUnavailable, "alice has 40 GiB of 40 GiB of GPU memory, and this needs 16 GiB more (per_user.gpu_memory)")
	})
	t.Run("the GPU on which it costs nothing is chosen", func(t *testing.T) {
		tab, _ := table(t, limited(20*gib))
		var on []gpu.UUID
		for range 2 {
			k, err := as(tab, 1001, "alice", "vision", "dev", false)
			if err != nil {
				t.Fatal(err)
			}
			l, _ := tab.Get(k.ID())
			on = append(on, l.Place.GPUs[0])
		}
		if on[0] != on[1] {
			t.Errorf("placed on %v", on)
		}
	})
	t.Run("never", func(t *testing.T) {
		tab, _ := table(t, limited(10*gib))
		_, err := as(tab, 1001, "alice", "vision", "dev", true)
		refused(t, err, api.KindInfeasible, "for alice: it needs 20 GiB of GPU memory, and a user may have 10 GiB (per_user.gpu_memory)")
		_, err = as(tab, 1001, "alice", "vision", "train", true)
		refused(t, err, api.KindInfeasible, "20 GiB")
		_, err = as(tab, 1001, "", "physics", "big", true)
		refused(t, err, api.KindInfeasible, "for uid 1001: it needs 80 GiB")
		if _, err := as(tab, 0, "root", "physics", "big", false); err != nil {
			t.Errorf("root: %v", err)
		}
	})
	t.Run("lowered below use", func(t *testing.T) {
		tab, _ := table(t, limited(40*gib))
		k, err := as(tab, 1001, "alice", "vision", "dev", false)
		if err != nil {
			t.Fatal(err)
		}
		v := limited(16 * gib)
		v.Generation = 2
		tab.Update(v)
		if !isPlaced(tab, k) {
			t.Error("the lease was ended")
		}
		_, err = as(tab, 1001, "alice", "speech", "serve", false)
		refused(t, err, api.KindUnavailable, "alice has 20 GiB of 16 GiB of GPU memory, and this needs 16 GiB more")
	})
	t.Run("instances on demand", func(t *testing.T) {
		v := View{
			Generation: 1,
			GPUs:       []GPUView{dynamicDevice(0)},
			Grants:     []Grant{mig("a", "half", "2g.12gb"), mig("b", "half", "2g.12gb")},
			PerUser:    PerUser{Leases: 1},
		}
		tab := New(Config{Isolation: &fakeIsolation{}, Capacity: firstFit{}})
		tab.Update(v)
		first, err := as(tab, 1001, "alice", "a", "half", true)
		if err != nil {
			t.Fatal(err)
		}
		second, err := as(tab, 1001, "alice", "b", "half", true)
		if err != nil {
			t.Fatal(err)
		}
		if got := next(
			t, second,
		).Lease.Waiting; got != "alice has 0 of 1 leases, and instances are being created for 1 more (per_user.leases)" {
			t.Errorf("the second waits because %q", got)
		}
		if p := tab.TakePendingInstances(); len(p) != 1 || p[0].Ticket != first.ID() {
			t.Errorf("created are %+v", p)
		}
	})
}
