package server

import (
	"testing"
)

// Connections past a user's cap are refused, whoever closes one gives one place back, and root is never refused.
func TestConnectionCaps(t *testing.T) {
	l := NewCappedListener(nil, nil)
	for i := range maxPerUID {
		if !l.take(1001, true) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if l.take(1001, true) {
		t.Error("there is no cap")
	}
	if !l.take(1010, true) {
		t.Error("one user's connections keep another out")
	}
	l.give(1001, true)
	if !l.take(1001, true) {
		t.Error("a place that was given back is not given again")
	}
	uid := 2000
	for ; l.take(uid, true); uid++ {
		if l.total > maxConns {
			t.Fatal("there is no cap on all of them")
		}
	}
	if l.total != maxConns {
		t.Errorf("%d connections at most, want %d", l.total, maxConns)
	}
	if !l.take(0, true) {
		t.Error("root is kept out")
	}
	if !l.take(1009, false) {
		t.Error("those who are known keep strangers out")
	}
	l.give(0, true)
	l.give(1009, false)
	if len(l.byUID) != uid-2000+2 || l.strangers != 0 || l.total != maxConns {
		t.Errorf("%d users, %d strangers and %d others are left", len(l.byUID), l.strangers, l.total)
	}
}

// One person has thousands of uids in a user namespace: together they are no more than strangers.
func TestStrangersShareOneCap(t *testing.T) {
	l := NewCappedListener(nil, nil)
	for i := range maxPerStranger {
		if !l.take(1009, false) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if l.take(1009, false) {
		t.Error("a stranger has no cap")
	}
	for uid := range 10 * maxStrangers {
		l.take(100000+uid, false)
	}
	if l.strangers != maxStrangers {
		t.Errorf("%d connections of strangers, want at most %d", l.strangers, maxStrangers)
	}
	if !l.take(1001, true) {
		t.Error("strangers keep a member out")
	}
}
