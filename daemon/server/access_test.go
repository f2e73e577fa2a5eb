package server

import (
	"testing"
)

// Connections above a user's cap are refused, a closed connection is not counted any more, and root is never refused.
func TestConnectionCaps(t *testing.T) {
	l := NewCappedListener(nil, nil)
	for i := range maxPerUID {
		if !l.admit(1001, true) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if l.admit(1001, true) {
		t.Error("there is no cap")
	}
	if !l.admit(1010, true) {
		t.Error("one user's connections block another user")
	}
	l.release(1001, true)
	if !l.admit(1001, true) {
		t.Error("a closed connection is still counted")
	}
	uid := 2000
	for ; l.admit(uid, true); uid++ {
		if l.total > maxConns {
			t.Fatal("there is no cap on all connections")
		}
	}
	if l.total != maxConns {
		t.Errorf("%d connections at most, want %d", l.total, maxConns)
	}
	if !l.admit(0, true) {
		t.Error("root is refused")
	}
	if !l.admit(1009, false) {
		t.Error("callers with a role block callers without one")
	}
	l.release(0, true)
	l.release(1009, false)
	if len(l.byUID) != uid-2000+2 || l.withoutRole != 0 || l.total != maxConns {
		t.Errorf("%d users, %d connections without a role and %d with one are left", len(l.byUID), l.withoutRole, l.total)
	}
}

// One user has thousands of uids in a user namespace. All uids without a role share one cap.
func TestCallersWithoutARoleShareOneCap(t *testing.T) {
	l := NewCappedListener(nil, nil)
	for i := range maxPerUIDWithoutRole {
		if !l.admit(1009, false) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if l.admit(1009, false) {
		t.Error("there is no cap for one uid without a role")
	}
	for uid := range 10 * maxWithoutRole {
		l.admit(100000+uid, false)
	}
	if l.withoutRole != maxWithoutRole {
		t.Errorf("%d connections without a role, want at most %d", l.withoutRole, maxWithoutRole)
	}
	if !l.admit(1001, true) {
		t.Error("callers without a role block a member")
	}
}
