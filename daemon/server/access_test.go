package server

import (
	"slices"
	"testing"
)

// conns opens connections of users without a network.
type conns struct {
	l    *cappedListener
	open []*cappedConn
}

// connect opens one; false if it is refused. What it replaces is closed, as in Accept.
func (x *conns) connect(uid int, hasRole bool) bool {
	c := &cappedConn{l: x.l, peer: &Peer{UID: uid}, hasRole: hasRole}
	ok, instead := x.l.admit(c)
	if instead != nil {
		x.open = slices.DeleteFunc(x.open, func(c *cappedConn) bool { return c == instead })
	}
	if ok {
		x.open = append(x.open, c)
	}
	return ok
}

func (x *conns) disconnect(uid int) {
	i := slices.IndexFunc(x.open, func(c *cappedConn) bool { return c.peer.UID == uid })
	c := x.open[i]
	x.open = slices.Delete(x.open, i, i+1)
	x.l.forget(c)
}

func (x *conns) count(uid int) int { return len(x.l.byUID[uid]) }

// Connections above a user's limit are refused, a closed connection is not counted any more, and root is never refused.
func TestConnectionCaps(t *testing.T) {
	x := &conns{l: &cappedListener{byUID: map[int][]*cappedConn{}}}
	for i := range maxPerUID {
		if !x.connect(1001, true) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if x.connect(1001, true) {
		t.Error("there is no limit")
	}
	if !x.connect(1010, true) {
		t.Error("one user's connections block another user")
	}
	x.disconnect(1001)
	if !x.connect(1001, true) {
		t.Error("a closed connection is still counted")
	}
	for i := range 2 * maxConns {
		if !x.connect(0, true) {
			t.Fatalf("connection %d of root is refused", i)
		}
	}
	for len(x.open) > 0 {
		x.disconnect(x.open[0].peer.UID)
	}
	if len(x.l.byUID) != 0 || x.l.withoutRole != 0 || x.l.total != 0 {
		t.Errorf("%d users, %d connections without a role and %d with one are left", len(x.l.byUID), x.l.withoutRole, x.l.total)
	}
}

// Users who have many connections together do not keep another user out: the largest one loses a connection for it.
func TestManyUsersDoNotKeepAnotherOut(t *testing.T) {
	x := &conns{l: &cappedListener{byUID: map[int][]*cappedConn{}}}
	const users = 50
	for range 2 * maxPerUID {
		for uid := 2000; uid < 2000+users; uid++ {
			x.connect(uid, true)
		}
	}
	if x.l.total != maxConns || len(x.open) != maxConns {
		t.Fatalf("%d connections at most, %d are open, want %d", x.l.total, len(x.open), maxConns)
	}
	for uid := 2000; uid < 2000+users; uid++ {
		if !x.l.isFull(uid) {
			t.Errorf("more of a connection of user %d is read than its uid", uid)
		}
	}
	for i := range maxConns / (users + 1) {
		if x.l.isFull(1001) {
			t.Fatalf("connection %d of another user is not looked at", i)
		}
		if !x.connect(1001, true) {
			t.Fatalf("connection %d of another user is refused", i)
		}
		if x.l.total != maxConns {
			t.Fatalf("%d connections", x.l.total)
		}
	}
	for uid := 2000; uid < 2000+users; uid++ {
		if n := x.count(uid); n < maxConns/(users+1) {
			t.Errorf("user %d has %d connections left", uid, n)
		}
	}
	if !x.connect(1009, false) {
		t.Error("callers with a role block callers without one")
	}
}

// One user has thousands of uids in a user namespace. All uids without a role share one limit.
func TestCallersWithoutARoleShareOneCap(t *testing.T) {
	x := &conns{l: &cappedListener{byUID: map[int][]*cappedConn{}}}
	for i := range maxPerUIDWithoutRole {
		if !x.connect(1009, false) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if x.connect(1009, false) {
		t.Error("there is no limit for one uid without a role")
	}
	for uid := range 10 * maxWithoutRole {
		x.connect(100000+uid, false)
	}
	if x.l.withoutRole != maxWithoutRole {
		t.Errorf("%d connections without a role, want at most %d", x.l.withoutRole, maxWithoutRole)
	}
	if !x.connect(1001, true) {
		t.Error("callers without a role block a member")
	}
}
