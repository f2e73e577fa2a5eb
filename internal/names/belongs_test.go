package names

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	write(t, h.Group, "")
	h.refresh(t, nil, nil)
	h.belongs(t, "after it left the group", 1000, 10, Absent)
	write(t, h.Passwd, "")
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
	// One that hangs is known to fail; that a caller waits no longer is no failure of the directory.
	h.script(t, "exec sleep 600")
	h.now = h.now.Add(time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := h.Confirm(ctx, 5001, h.now.Add(-30*time.Second)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a directory that hangs has answered: %v", err)
	}
	left, leave := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, leave)
	if err := h.Confirm(left, 5001, h.now.Add(-30*time.Second)); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left got %v", err)
	}
	if _, failing := h.Failing(); failing != nil {
		t.Errorf("a caller that has left is a failure: %v", failing)
	}
	h.Timeout = 10 * time.Millisecond
	if err := h.Confirm(t.Context(), 5001, h.now.Add(-30*time.Second)); err == nil {
		t.Error("a directory that hangs has answered")
	}
	if _, failing := h.Failing(); failing == nil || h.Silent(5001) == nil {
		t.Error("the failure is not known")
	}
	h.script(t, ldap)
	h.Timeout = 10 * time.Second
	h.refresh(t, nil, nil)
	if _, failing := h.Failing(); failing != nil {
		t.Errorf("it still fails: %v", failing)
	}
	h.belongs(t, "when it answers", 5001, 6001, Present)
}

// The spec may name a user in another spelling than the directory has, and accounts may share a number: they are members all the same.
func TestConfirmOfAnotherSpelling(t *testing.T) {
	h := newFixture(
		t,
		strings.Replace(
			ldap,
			"initgroups:alice)",
			"passwd:robert) echo 'robert:*:5002:6000::/:/bin/sh' ;;\n\tinitgroups:bob|initgroups:Bob) echo 'Bob 6001' ;;\n\tinitgroups:alice)",
			1,
		),
	)
	h.refresh(t, []string{"Bob", "robert"}, nil)
	for range 2 {
		h.now = h.now.Add(time.Minute)
		if err := h.Confirm(t.Context(), 5002, h.now.Add(-30*time.Second)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"Bob", "robert"} {
			h.user(t, name, 5002, Present)
			if at := h.Confirmed(name); !at.Equal(h.now) {
				t.Errorf("%s was confirmed at %v", name, at)
			}
		}
		h.belongs(t, "in the other spelling", 5002, 6001, Present)
		h.calls(t)
		if err := h.Confirm(t.Context(), 5002, h.now.Add(-time.Second)); err != nil || h.calls(t)[0] != "" {
			t.Errorf("it is queried again: %v", err)
		}
	}
	// The number goes to another account.
	h.script(t, strings.ReplaceAll(ldap, "passwd:bob|passwd:5002|passwd:Bob) echo 'bob:", "passwd:5002) echo 'eve:"))
	h.now = h.now.Add(time.Minute)
	if err := h.Confirm(t.Context(), 5002, h.now.Add(-30*time.Second)); err != nil {
		t.Fatal(err)
	}
	h.user(t, "Bob", -1, Absent)
	h.user(t, "robert", -1, Absent)
	h.belongs(t, "another account", 5002, 6001, Absent)
	if n := h.UserName(5002); n != "eve" {
		t.Errorf("uid 5002 is %s", n)
	}
}

// failsFor is ldap, whose question about some names fails, as one that hangs does after a while.
func failsFor(pattern string) string {
	return "case \" $* \" in " + pattern + ") exit 1 ;; esac\n" + ldap
}

// A name that fails takes nothing from the others.
func TestOneNameThatFails(t *testing.T) {
	h := newFixture(t, failsFor("*\" ghost \"*"))
	h.Belongs(5001, 6001)
	for range 3 { // The first one queries them together, and the third one for the groups.
		h.now = h.now.Add(2 * freshFor)
		if err := h.Refresh(t.Context(), []string{"ghost", "alice", "Bob"}, []string{"vision"}, false); err == nil ||
			!strings.Contains(err.Error(), "getent failed") {
			t.Errorf("the error is %v", err)
		}
		for _, name := range []string{"alice", "Bob"} {
			if at := h.Confirmed(name); !at.Equal(h.now) {
				t.Errorf("%s was confirmed at %v", name, at)
			}
		}
		h.user(t, "ghost", -1, Unknown)
		h.group(t, "vision", 6001, Present)
		h.Belongs(5001, 6001)
	}
	if m := h.belongs(t, "although another name fails", 5001, 6001, Present); !m.At.Equal(h.now) {
		t.Errorf("the groups are of %v", m.At)
	}
	if h.Silent(5001) != nil {
		t.Error("it seems not to answer about another user")
	}
	if _, failing := h.Failing(); failing == nil {
		t.Error("the failure is not known")
	}
	if err := h.Refresh(t.Context(), []string{"alice", "Bob"}, []string{"vision"}, false); err != nil {
		t.Errorf("without the name: %v", err)
	}
	if _, failing := h.Failing(); failing != nil {
		t.Errorf("a name that is not needed still fails: %v", failing)
	}
}

// All questions about one user may fail without that it counts as a directory that answers nothing.
func TestOneUserThatFails(t *testing.T) {
	h := newFixture(t, ldap)
	h.refresh(t, []string{"alice", "Bob"}, nil)
	h.Belongs(5001, 6001)
	h.script(t, failsFor("*\" alice \"*|*\" 5001 \"*"))
	for range 2 {
		if h.Refresh(t.Context(), []string{"alice"}, nil, true) == nil || h.Confirm(t.Context(), 5001, h.now.Add(time.Second)) == nil {
			t.Error("a failure is no error")
		}
	}
	if h.Silent(5001) == nil || h.Silent(5002) != nil {
		t.Errorf("of the user: %v, of another one: %v", h.Silent(5001), h.Silent(5002))
	}
}

// More names that fail than one pass queries leave the others their turn.
func TestNamesThatFailLeaveTimeForOthers(t *testing.T) {
	h := newFixture(t, failsFor("*\" g\"*"))
	names := []string{"alice"}
	for i := range 10 {
		names = append(names, fmt.Sprint("g", i))
	}
	slices.Sort(names[1:])
	slices.Reverse(names) // alice is the last one.
	for range 6 {
		h.now = h.now.Add(time.Second)
		if err := h.Refresh(t.Context(), names, nil, false); err == nil {
			t.Error("names that fail are no error")
		}
	}
	h.user(t, "alice", 5001, Present)
	if h.Silent(5001) == nil {
		t.Error("many that fail in a row are not noticed")
	}
	h.script(t, ldap)
	h.refresh(t, names, nil)
	if _, failing := h.Failing(); failing != nil {
		t.Errorf("it still fails: %v", failing)
	}
}

// Between the questions of a Refresh others may query: they do not wait until it has queried all users.
func TestRefreshLetsOthersQuery(t *testing.T) {
	h := newFixture(t, "case $1:$2 in passwd:one) exit 1 ;; esac\n"+ldap)
	h.refresh(t, nil, nil)
	h.keepGroups("one", nil)
	h.keepGroups("two", nil)
	h.now = h.now.Add(2 * freshFor)
	h.calls(t)
	free, now := false, h.now
	h.Now = func() time.Time {
		calls, _ := os.ReadFile(filepath.Join(h.dir, "calls"))
		if begun := string(calls); strings.Contains(begun, "one") && !strings.Contains(begun, "two") {
			h.requests.once.Do(func() { h.requests.c = make(chan struct{}, 1) })
			select {
			case h.requests.c <- struct{}{}:
				<-h.requests.c
				free = true
			default:
			}
		}
		return now
	}
	if err := h.Refresh(t.Context(), nil, nil, false); err == nil {
		t.Error("a failure is no error")
	}
	if !free {
		t.Error("no other query may run before it has queried all")
	}
}

// A directory that does not know any user any more that it knew before has lost its servers: no user is removed.
func TestADirectoryThatKnowsNothing(t *testing.T) {
	h := newFixture(t, ldap)
	users, groups := []string{"alice", "bob", "local"}, []string{"vision", "wheel"}
	h.refresh(t, users, groups)
	h.Belongs(5001, 6001)
	h.refresh(t, users, groups)
	began := h.now
	files := strings.NewReplacer(
		"passwd:alice|passwd:5001", "passwd:-", "passwd:bob|passwd:5002|passwd:Bob", "passwd:-", "group:vision", "group:-",
		"initgroups:alice", "initgroups:-",
	).Replace(ldap)
	h.script(t, files)
	for range 2 {
		h.now = h.now.Add(2 * freshFor)
		if err := h.Confirm(t.Context(), 5001, h.now.Add(-time.Second)); err == nil || !strings.Contains(err.Error(), "knows none of 2") {
			t.Errorf("the error of one user is %v", err)
		}
		if err := h.Refresh(t.Context(), users, groups, false); err == nil || !strings.Contains(err.Error(), "knows none of") {
			t.Errorf("the error is %v", err)
		}
		h.user(t, "alice", 5001, Present)
		h.user(t, "bob", 5002, Present)
		h.user(t, "local", 1000, Present)
		h.group(t, "vision", 6001, Present)
		if m := h.belongs(t, "without an answer", 5001, 6001, Present); !m.At.Equal(began) || !h.Confirmed("alice").Equal(began) ||
			!h.Answered().Equal(began) {
			t.Errorf("the answers are of %v, %v, %v", m.At, h.Confirmed("alice"), h.Answered())
		}
		if h.Silent(5002) == nil {
			t.Error("it seems to answer about another user")
		}
	}
	// One user that it knows shows that it answers: the other one was removed.
	h.script(t, strings.Replace(ldap, "passwd:bob|passwd:5002|", "", 1))
	h.refresh(t, users, groups)
	h.user(t, "alice", 5001, Present)
	h.user(t, "bob", -1, Absent)
	if _, failing := h.Failing(); failing != nil {
		t.Errorf("it still fails: %v", failing)
	}
	// The last one may be removed.
	h.script(t, files)
	h.now = h.now.Add(2 * freshFor)
	h.refresh(t, []string{"alice"}, []string{"wheel"})
	h.user(t, "alice", -1, Absent)
}

// Users that are removed from the local files are removed, all at once too.
func TestUsersRemovedFromTheFiles(t *testing.T) {
	h := newFixture(t, `
db=$1; shift
for key; do
	grep -E "^$key:|:x:$key:" "${0%/*}/$db" || missing=2
done
exit ${missing:-0}`)
	two := passwd + "one:x:1101:1::/:/bin/sh\ntwo:x:1102:1::/:/bin/sh\n"
	write(t, h.Passwd, two)
	h.refresh(t, []string{"one", "two"}, nil)
	h.user(t, "two", 1102, Present)
	write(t, h.Passwd, passwd)
	h.now = h.now.Add(2 * freshFor)
	if err := h.Confirm(t.Context(), 1101, h.now.Add(-time.Second)); err != nil {
		t.Error(err)
	}
	h.user(t, "one", -1, Absent)
	write(t, h.Passwd, two)
	if err := h.Refresh(t.Context(), []string{"one", "two"}, nil, true); err != nil {
		t.Fatal(err)
	}
	write(t, h.Passwd, passwd)
	h.now = h.now.Add(2 * freshFor)
	h.refresh(t, []string{"one", "two"}, nil)
	h.user(t, "one", -1, Absent)
	h.user(t, "two", -1, Absent)
}
