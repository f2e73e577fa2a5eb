package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/systemd"
	"github.com/gpushare/gpushare/test/enumeration"
)

// adopting is the spec with closed logins, in which the tenant adopts logins into its time-sliced grant.
var adopting = strings.NewReplacer("    members: {users: [nobody]}\n", "    members: {users: [nobody]}\n    adopt: {logins: part}\n",
	"node: {", "node: {per_user: {leases: 5}, ").Replace(closedLogins)

// adopted returns the running leases of logins.
func adopted(s *api.Status) []api.Lease {
	return slices.DeleteFunc(
		slices.Clone(s.Leases), func(l api.Lease) bool { return l.Origin != api.OriginLogin || l.State != api.LeaseRunning },
	)
}

// The login of a member is a lease, opens the devices of its grant and no others, and outlives the daemon. The lease ends
// with the login or when the spec ends the adoption, and no process is stopped.
func TestAdoptedLogin(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	l := newLogins(t)
	apply(t, l.Node, adopting)
	slice := systemd.UserSlice(nobody) + "/session-1.scope"
	// They print nothing, so that Wait does not wait for their output.
	login, root, other := l.command(t, nobody, slice, "sleep", "600"), l.command(
		t, 0, systemd.UserSlice(0), "sleep", "600",
	), l.command(t, games, systemd.UserSlice(games), "sleep", "600")
	for _, cmd := range []interface{ Start() error }{login, root, other} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		for _, cmd := range []interface{ Wait() error }{login, root, other} {
			_ = cmd.Wait() // Each is killed, which is the error.
		}
	}()
	t.Cleanup(func() {
		for _, cmd := range []interface{ Kill() error }{login.Process, root.Process, other.Process} {
			_ = cmd.Kill() // It may have ended.
		}
		<-reaped
	})
	in := func(uid uint32) []string { return l.opensIn(t, uid, systemd.UserSlice(int(uid))+"/session-2.scope") }
	s := awaitStatus(t, l.Node, "the login has no lease", func(s *api.Status) bool { return len(adopted(s)) > 0 })
	all := adopted(s)
	if len(all) != 1 || all[0].UID != nobody || all[0].User != "nobody" || all[0].Grant != "part" ||
		all[0].Isolation.Unit != systemd.UserSlice(nobody) ||
		all[0].State != api.LeaseRunning {
		t.Fatalf("the leases are %+v", all)
	}
	if got := in(nobody); !slices.Equal(got, []string{"nvidia1", "nvidia2"}) {
		t.Errorf("the login opens %v", got)
	}
	if got := in(games); !slices.Equal(got, []string{"nvidia1"}) {
		t.Errorf("another user's login opens %v", got)
	}
	if len(s.Users) != 1 || s.Users[0].User != "nobody" || s.Users[0].Leases != 1 {
		t.Errorf("it does not count for its user: %+v", s.Users)
	}
	id := all[0].ID

	l.KillDaemon()
	if got := in(nobody); !slices.Equal(got, []string{"nvidia1", "nvidia2"}) {
		t.Errorf("without the daemon the login opens %v", got)
	}
	if err := l.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if again := adopted(status(t, l.Node)); len(again) != 1 || again[0].ID != id {
		t.Errorf("after a restart the leases are %+v, want %s", again, id)
	}

	// A process that moves from its lease into an adopted login has escaped.
	x := startEscape(t, l.Node, "exec sleep 60")
	x.top = l.dir + "/" + slice
	x.move(x.job.PID())
	if e := x.events.await(t, "lease.escaped", x.id); !strings.Contains(e.Message, "it was killed") {
		t.Errorf("the event is %+v", e)
	}

	apply(t, l.Node, closedLogins)
	awaitStatus(t, l.Node, "the lease is still there", func(s *api.Status) bool {
		return !slices.ContainsFunc(s.Leases, func(l api.Lease) bool { return l.Origin == api.OriginLogin }) // nor ending
	})
	if got := in(nobody); !slices.Equal(got, []string{"nvidia1"}) {
		t.Errorf("without adoption the login opens %v", got)
	}
	apply(t, l.Node, adopting)
	awaitStatus(t, l.Node, "the login has no lease after adoption is on again", func(s *api.Status) bool { return len(adopted(s)) == 1 })
	if st, err := procfs.Read(login.Process.Pid); err != nil || st.Dead() {
		t.Errorf("the login's process has ended: %v", err)
	}
	if err := login.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, l.Node, "the lease outlives the login", func(s *api.Status) bool { return len(adopted(s)) == 0 })
}
