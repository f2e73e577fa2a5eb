package server

import (
	"testing"
)

// Connections past a user's cap are refused, whoever closes one gives one place back, and root is never refused.
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
		t.Error("one user's connections keep another out")
	}
	l.release(1001, true)
	if !l.admit(1001, true) {
		t.Error("a place that was given back is not given again")
	}
	uid := 2000
	for ; l.admit(uid, true); uid++ {
		if l.total > maxConns {
			t.Fatal("there is no cap on all of them")
		}
	}
	if l.total != maxConns {
		t.Errorf("%d connections at most, want %d", l.total, maxConns)
	}
	if !l.admit(0, true) {
		t.Error("root is kept out")
	}
	if !l.admit(1009, false) {
		t.Error("those who are known keep strangers out")
	}
	l.release(0, true)
	l.release(1009, false)
	if len(l.byUID) != uid-2000+2 || l.withoutRole != 0 || l.total != maxConns {
		t.Errorf("%d users, %d strangers and %d others are left", len(l.byUID), l.withoutRole, l.total)
	}
}

// One person has thousands of uids in a user namespace: together they are no more than strangers.
func TestCallersWithoutARoleShareOneCap(t *testing.T) {
	l := NewCappedListener(nil, nil)
	for i := range maxPerUIDWithoutRole {
		if !l.admit(1009, false) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if l.admit(1009, false) {
		t.Error("a stranger has no cap")
	}
	for uid := range 10 * maxWithoutRole {
		l.admit(100000+uid, false)
	}
	if l.withoutRole != maxWithoutRole {
		t.Errorf("%d connections of strangers, want at most %d", l.withoutRole, maxWithoutRole)
	}
	if !l.admit(1001, true) {
		t.Error("strangers keep a member out")
	}
}
