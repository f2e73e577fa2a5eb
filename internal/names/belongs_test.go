package names

import (
	"context"
	"testing"
	"time"
)

// withoutVision is ldap after alice has left the group vision.
const withoutVision = `
kind=$1; shift
case $kind:$1 in
passwd:alice|passwd:5001) echo 'alice:*:5001:6000:Alice:/home/alice:/bin/sh' ;;
initgroups:alice) echo 'alice                 7001' ;;
*) exit 2 ;;
esac`

func (h *fixture) belongs(t *testing.T, what string, uid, gid int, want State) Membership {
	t.Helper()
	m := h.Belongs(uid, gid)
	if m.State != want {
		t.Errorf("%s: uid %d in group %d is %v, want %v", what, uid, gid, m.State, want)
	}
	return m
}

// Whether a user is in a group is what the directory said last, and how old that is is known.
func TestBelongs(t *testing.T) {
	h := newFixture(t, ldap)
	h.belongs(t, "before the name is known", 5001, 6001, Unknown)
	h.refresh(t, nil, nil)
	h.belongs(t, "before the groups are known", 5001, 6001, Unknown)
	h.refresh(t, nil, nil)
	began := h.now
	h.belongs(t, "a member", 5001, 6001, Present)
	h.belongs(t, "the primary group", 5001, 6000, Present)
	h.belongs(t, "another group", 5001, 6002, Absent)
	h.belongs(t, "a local user", 1000, 10, Present)
	h.belongs(t, "a number", 5003, 6001, Unknown)
	h.refresh(t, nil, nil)
	h.belongs(t, "a number without a name", 5003, 6001, Absent)

	// It leaves the group. That is known when the answer is not fresh any more.
	h.script(t, withoutVision)
	h.refresh(t, nil, nil)
	h.belongs(t, "a fresh answer", 5001, 6001, Present)
	h.now = h.now.Add(freshFor + time.Second)
	h.refresh(t, nil, nil)
	h.belongs(t, "after it left the group", 5001, 6001, Absent)
	h.script(t, ldap)
	if err := h.Refresh(t.Context(), nil, nil, true); err != nil {
		t.Fatal(err)
	}
	h.belongs(t, "after it is back", 5001, 6001, Present)

	// A directory that does not answer changes nothing, and the answer gets older. Local files count all the same.
	h.now = h.now.Add(time.Hour)
	h.script(t, "exit 1")
	if err := h.Refresh(t.Context(), []string{"alice"}, nil, true); err == nil {
		t.Fatal("a failure is no error")
	}
	if m := h.belongs(t, "without an answer", 5001, 6001, Present); m.At.Sub(began) > 2*freshFor {
		t.Errorf("the answer is of %v", m.At)
	}
	if m := h.belongs(t, "a local user without an answer", 1000, 10, Present); !m.At.Equal(h.now) {
		t.Errorf("the answer about a local user is of %v", m.At)
	}
	if _, failing := h.Failing(); failing == nil {
		t.Error("the failure is not known")
	}
	if err := h.Refresh(t.Context(), nil, nil, false); err == nil {
		t.Error("without a question the failure ended")
	}
	// An account that is removed has no groups.
	h.script(t, "exit 2")
	if err := h.Refresh(t.Context(), []string{"alice"}, nil, true); err != nil {
		t.Fatal(err)
	}
	h.belongs(t, "a removed account", 5001, 6001, Absent)
}

// A user of the local files alone.
func TestBelongsWithoutADirectory(t *testing.T) {
	h := newFixture(t, "")
	h.refresh(t, nil, nil)
	h.belongs(t, "a member", 1000, 10, Present)
	h.belongs(t, "another group", 1000, 6001, Absent)
	h.belongs(t, "a user of whom the files know nothing", 5001, 6001, Unknown)
	write(t, h.Group, "", 0o644)
	h.refresh(t, nil, nil)
	h.belongs(t, "after it left the group", 1000, 10, Absent)
	write(t, h.Passwd, "", 0o644)
	h.refresh(t, nil, nil)
	h.belongs(t, "a removed account", 1000, 10, Absent)
}

// Confirm asks at once, once for all that ask together, and not again while the answer is new.
func TestConfirm(t *testing.T) {
	h := newFixture(t, ldap)
	h.refresh(t, nil, nil)
	h.calls(t)
	since := h.now.Add(-time.Second)
	for range 3 {
		if err := h.Confirm(t.Context(), 5001, since); err != nil {
			t.Fatal(err)
		}
	}
	if calls := h.calls(t); len(calls) != 2 {
		t.Errorf("the calls are %q", calls)
	}
	h.belongs(t, "a member", 5001, 6001, Present)
	h.script(t, withoutVision)
	h.now = h.now.Add(time.Minute)
	if err := h.Confirm(t.Context(), 5001, h.now.Add(-30*time.Second)); err != nil {
		t.Fatal(err)
	}
	h.belongs(t, "after it left the group", 5001, 6001, Absent)
	h.script(t, "exit 2")
	h.now = h.now.Add(time.Minute)
	if err := h.Confirm(t.Context(), 5001, h.now.Add(-30*time.Second)); err != nil {
		t.Fatal(err)
	}
	h.belongs(t, "a removed account", 5001, 6001, Absent)
	if n := h.UserName(5001); n != "uid 5001" {
		t.Errorf("it is called %s", n)
	}
	// One that hangs costs the time of the caller alone, and is known to fail.
	h.script(t, "exec sleep 600")
	h.now = h.now.Add(time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := h.Confirm(ctx, 5001, h.now.Add(-30*time.Second)); err == nil {
		t.Error("a directory that hangs has answered")
	}
	if _, failing := h.Failing(); failing == nil {
		t.Error("the failure is not known")
	}
}
