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

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/test/programs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\n# a comment\n+::::::\nlocal:x:1000:1000::/home/local:/bin/sh\nbroken:x:-1:0::/:\n\nlocal:x:1001:1:the second line of a name:/:/bin/sh\n"
	group  = "root:x:0:\nlocal:x:1000:\nwheel:x:10:local,other\n"
)

// fixture is a directory with the files and the getent of a test.
type fixture struct {
	*Directory
	dir string
	now time.Time
}

// newFixture writes a getent that logs its calls and then runs the script: the keys are in "$@" after the database.
func newFixture(t *testing.T, script string) *fixture {
	t.Helper()
	h := &fixture{dir: t.TempDir(), now: time.Unix(1000, 0)}
	h.Directory = &Directory{
		Passwd: filepath.Join(h.dir, "passwd"), Group: filepath.Join(h.dir, "group"), Timeout: 10 * time.Second,
		Now: func() time.Time { return h.now },
	}
	write(t, h.Passwd, passwd)
	write(t, h.Group, group)
	if script != "" {
		h.Program = filepath.Join(h.dir, "getent")
		h.script(t, script)
	}
	return h
}

func (h *fixture) script(t *testing.T, script string) {
	t.Helper()
	// The file is replaced: a program that runs cannot be written.
	if err := programs.Write(h.Program+".new", "#!/bin/sh\necho \"$*\" >> '"+h.dir+"/calls'\n"+script+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(h.Program+".new", h.Program); err != nil {
		t.Fatal(err)
	}
}

// calls returns the calls of getent since the last one.
func (h *fixture) calls(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(h.dir, "calls")
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	os.Remove(file)
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ldap answers for alice (5001), bob (5002) and vision (6001), by name and by number.
const ldap = `
kind=$1; shift; missing=0
for key; do
	case $kind:$key in
	passwd:alice|passwd:5001) echo 'alice:*:5001:6000:Alice:/home/alice:/bin/sh' ;;
	passwd:bob|passwd:5002|passwd:Bob) echo 'bob:*:5002:6000:Bob:/home/bob:/bin/sh' ;;
	passwd:local) echo 'local:x:1000:1000::/home/local:/bin/sh' ;;
	group:vision) echo 'vision:*:6001:alice,bob' ;;
	initgroups:alice) echo 'alice                 6001 7001' ;;
	*) missing=2 ;;
	esac
done
exit $missing`

func (h *fixture) refresh(t *testing.T, users, groups []string) {
	t.Helper()
	if err := h.Refresh(t.Context(), users, groups, false); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, what string, id int, s State, wantID int, want State) {
	t.Helper()
	if id != wantID || s != want {
		t.Errorf("%s is %d (%v), want %d (%v)", what, id, s, wantID, want)
	}
}

func (h *fixture) user(t *testing.T, name string, id int, want State) {
	t.Helper()
	got, s := h.UserID(name)
	expect(t, "user "+name, got, s, id, want)
}

func (h *fixture) group(t *testing.T, name string, id int, want State) {
	t.Helper()
	got, s := h.GroupID(name)
	expect(t, "group "+name, got, s, id, want)
}

func TestFilesAlone(t *testing.T) {
	h := newFixture(t, "")
	h.user(t, "local", -1, Unknown)
	h.refresh(t, []string{"local", "alice"}, []string{"wheel"})
	h.user(t, "local", 1000, Present)
	h.user(t, "alice", -1, Absent)
	h.user(t, "broken", -1, Absent)
	h.user(t, "0", -1, Absent)
	h.group(t, "wheel", 10, Present)
	if n := h.UserName(1000); n != "local" {
		t.Errorf("uid 1000 is %q", n)
	}
	if n := h.UserName(4711); n != "uid 4711" || !h.HasPending() {
		t.Errorf("uid 4711 is %q, and a name is pending: %v", n, h.HasPending())
	}
	h.refresh(t, nil, nil)
	if h.UserName(4711); h.HasPending() {
		t.Error("a number without a name is pending again at once")
	}
	// A new user is known after the next refresh, without a restart.
	write(t, h.Passwd, passwd+"new:x:4711:1::/:/bin/sh\n")
	h.refresh(t, nil, nil)
	h.user(t, "new", 4711, Present)
	if n := h.UserName(4711); n != "new" {
		t.Errorf("uid 4711 is %q now", n)
	}
	got, err := h.GroupsOf(t.Context(), "local")
	if err != nil || !slices.Equal(got, []int{1000, 10}) {
		t.Errorf("the groups of local are %v, %v", got, err)
	}
	if _, err := h.GroupsOf(t.Context(), "alice"); !errors.Is(err, ErrUnknown) {
		t.Errorf("the groups of alice: %v", err)
	}
}

func TestMissingFiles(t *testing.T) {
	h := newFixture(t, "")
	os.Remove(h.Passwd)
	h.refresh(t, []string{"local"}, nil)
	h.user(t, "local", -1, Absent)
	h.Passwd = h.dir // It cannot be read as a file.
	if err := h.Refresh(t.Context(), nil, nil, false); err == nil {
		t.Error("a directory was read as passwd")
	}
	if _, err := h.Failing(); err == nil {
		t.Error("that the file cannot be read is not reported")
	}
}

func TestDirectoryAnswers(t *testing.T) {
	h := newFixture(t, ldap)
	h.refresh(t, []string{"alice", "ghost", "local", "Bob"}, []string{"vision", "alice"})
	h.user(t, "alice", 5001, Present)
	h.user(t, "Bob", 5002, Present) // The directory has another spelling.
	h.user(t, "local", 1000, Present)
	h.user(t, "ghost", -1, Absent)
	h.group(t, "vision", 6001, Present)
	h.group(t, "alice", -1, Absent)
	want := []string{"passwd alice ghost local Bob", "passwd ghost", "passwd Bob", "group vision alice", "group alice"}
	if diff := cmp.Diff(want, h.calls(t)); diff != "" {
		t.Errorf("queries (-want +got):\n%s", diff)
	}
	// Fresh names are not queried again; names that were not found are.
	h.refresh(t, []string{"alice", "ghost"}, []string{"vision"})
	if diff := cmp.Diff([]string{"passwd ghost"}, h.calls(t)); diff != "" {
		t.Errorf("then queries (-want +got):\n%s", diff)
	}
	h.now = h.now.Add(freshFor + time.Second)
	h.refresh(t, []string{"alice"}, nil)
	if diff := cmp.Diff([]string{"passwd alice"}, h.calls(t)); diff != "" {
		t.Errorf("later queries (-want +got):\n%s", diff)
	}
	if err := h.Refresh(t.Context(), []string{"alice"}, nil, true); err != nil || len(h.calls(t)) != 1 {
		t.Errorf("querying all: %v", err)
	}
	// By number, once.
	if n := h.UserName(5002); n != "Bob" {
		t.Errorf("uid 5002 is %q", n)
	}
	if n := h.UserName(5003); n != "uid 5003" {
		t.Errorf("uid 5003 is %q", n)
	}
	h.refresh(t, nil, nil)
	if diff := cmp.Diff([]string{"passwd 5003"}, h.calls(t)); diff != "" {
		t.Errorf("queries of the number (-want +got):\n%s", diff)
	}
	if h.UserName(5003); h.HasPending() {
		t.Error("a number without a name is pending again at once")
	}
	h.now = h.now.Add(freshFor + time.Second)
	if h.UserName(5003); !h.HasPending() {
		t.Error("a number without a name is never queried again")
	}
	got, err := h.GroupsOf(t.Context(), "alice")
	if err != nil || !slices.Equal(got, []int{6000, 6001, 7001}) {
		t.Errorf("the groups of alice are %v, %v", got, err)
	}
	if _, err := h.GroupsOf(t.Context(), "ghost"); !errors.Is(err, ErrUnknown) {
		t.Errorf("the groups of a ghost: %v", err)
	}
}

func TestNumberIsQueriedAlone(t *testing.T) {
	h := newFixture(t, ldap)
	h.refresh(t, nil, nil)
	if n := h.UserName(5001); n != "uid 5001" || !h.HasPending() {
		t.Errorf("uid 5001 is %q before a query", n)
	}
	h.refresh(t, nil, nil)
	if n := h.UserName(5001); n != "alice" || h.HasPending() {
		t.Errorf("uid 5001 is %q", n)
	}
}

// A failure of the directory is reported, and what was known is kept.
func TestDirectoryThatFails(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"it ends with an error", "exit 3", "getent failed"},
		{"it is killed", "kill -9 $$", "getent failed"},
		{"too much output", "exec cat /dev/zero", "getent"},
		{"it hangs", "exec sleep 60", "did not answer within"},
		{"it hangs and its child too", "sleep 60 & wait", "did not answer within"},
		{"it ignores what ends it", "trap '' TERM; while :; do sleep 60; done", "did not answer within"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFixture(t, ldap)
			h.refresh(t, []string{"alice"}, []string{"vision"})
			h.script(t, c.script)
			h.Timeout = 100 * time.Millisecond
			if strings.Contains(c.name, "much") {
				h.Timeout = 10 * time.Second
			}
			began := time.Now()
			err := h.Refresh(t.Context(), []string{"alice", "bob", "local"}, []string{"vision"}, true)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if elapsed := time.Since(began); elapsed > 5*time.Second {
				t.Errorf("it needed %v", elapsed)
			}
			h.user(t, "alice", 5001, Present)
			h.group(t, "vision", 6001, Present)
			h.user(t, "local", 1000, Present) // by the file
			h.user(t, "bob", -1, Unknown)     // the directory did not answer
			since, why := h.Failing()
			if why == nil || !since.Equal(h.now) {
				t.Errorf("it fails since %v: %v", since, why)
			}
			h.now = h.now.Add(time.Minute)
			if err := h.Refresh(t.Context(), []string{"bob"}, nil, false); err == nil {
				t.Error("it answers suddenly")
			}
			if later, _ := h.Failing(); !later.Equal(since) {
				t.Errorf("it fails since %v only", later)
			}
			h.script(t, ldap)
			h.Timeout = 10 * time.Second
			h.refresh(t, []string{"bob"}, nil)
			h.user(t, "bob", 5002, Present)
			if _, why := h.Failing(); why != nil {
				t.Errorf("it still fails: %v", why)
			}
		})
	}
}

// A killed getent that needs long to exit on a busy host is waited for by the next call, not taken for one that never will.
func TestAKilledGetentMayExitLate(t *testing.T) {
	h := newFixture(t, ldap)
	exited := make(chan struct{})
	h.stuck = exited
	time.AfterFunc(50*time.Millisecond, func() { close(exited) })
	h.refresh(t, []string{"alice"}, nil)
	h.user(t, "alice", 5001, Present)
	h.stuck, h.Timeout = make(chan struct{}), 10*time.Millisecond
	if err := h.Refresh(t.Context(), []string{"bob"}, nil, false); !errors.Is(err, errStuck) {
		t.Errorf("one that never exits: %v", err)
	}
}

// Reading what is known does not wait for a query.
func TestReadingDoesNotWait(t *testing.T) {
	h := newFixture(t, ldap)
	h.refresh(t, []string{"alice"}, nil)
	fifo := filepath.Join(h.dir, "asked")
	h.script(t, "echo > '"+fifo+"'; exec sleep 60")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Refresh(ctx, []string{"alice"}, nil, true) }()
	for { // The script cannot report in another way that it runs.
		if _, err := os.Stat(fifo); err == nil {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("it does not hang: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	h.user(t, "alice", 5001, Present)
	if n := h.UserName(5001); n != "alice" {
		t.Errorf("uid 5001 is %q", n)
	}
	// A second query waits no longer than its context.
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := h.Refresh(short, nil, nil, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second query: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the first query: %v", err)
	}
}

func TestManyNamesAreFewCalls(t *testing.T) {
	h := newFixture(t, `shift; for key; do echo "$key:x:$((7000 + ${#key})):1::/:/bin/sh"; done`)
	var users []string
	for i := range 40 {
		users = append(users, "u"+strings.Repeat("x", i))
	}
	h.refresh(t, append(users, users...), nil)
	if n := len(h.calls(t)); n != 3 {
		t.Errorf("%d calls for 40 names", n)
	}
	h.user(t, users[39], 7040, Present)
}

// Names that getent would read as something else are not queried.
func TestInvalidNamesAreNotQueried(t *testing.T) {
	h := newFixture(t, `shift; for key; do echo "$key:x:0:0::/:/bin/sh"; done`)
	strange := []string{"0", "1000", "-s", "--service=files", "", "a:b", "a\nb", "+", "#", strings.Repeat("x", 300)}
	h.refresh(t, strange, strange)
	if got := h.calls(t); len(got) != 1 || got[0] != "" {
		t.Errorf("queries: %q", got)
	}
	for _, name := range strange {
		h.user(t, name, -1, Absent)
	}
	if _, err := h.GroupsOf(t.Context(), "-s"); err == nil {
		t.Error("an option has groups")
	}
}

func TestPendingNumbersAreBounded(t *testing.T) {
	h := newFixture(t, ldap)
	h.refresh(t, nil, nil)
	for uid := 10000; uid < 20000; uid++ {
		h.UserName(uid)
	}
	if len(h.pending) > maxPending {
		t.Errorf("%d numbers are pending", len(h.pending))
	}
	for i := range 40 {
		for uid := range maxPending {
			h.UserName(10000 + i*maxPending + uid)
		}
		h.recordNames(h.takePending(), nil)
	}
	if len(h.unnamed) > maxUnnamed+maxPending {
		t.Errorf("%d numbers without a name are kept", len(h.unnamed))
	}
}

func TestTheHostsOwnGetent(t *testing.T) {
	program := Find()
	if program == "" {
		t.Skip("needs a getent")
	}
	d := &Directory{Program: program}
	if err := d.Refresh(t.Context(), []string{"root", "no-such-user-here"}, []string{"root"}, false); err != nil {
		t.Fatal(err)
	}
	id, s := d.UserID("root")
	expect(t, "root", id, s, 0, Present)
	id, s = d.UserID("no-such-user-here")
	expect(t, "no-such-user-here", id, s, -1, Absent)
	if n := d.UserName(0); n != "root" {
		t.Errorf("uid 0 is %q", n)
	}
	if g, err := d.GroupsOf(t.Context(), "root"); err != nil || !slices.Contains(g, 0) {
		t.Errorf("the groups of root are %v, %v", g, err)
	}
}

func TestParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var lines []string
		want := map[string]int{}
		for i := range rapid.IntRange(0, 8).Draw(t, "lines") {
			if rapid.Bool().Draw(t, "noise") {
				lines = append(lines, rapid.StringMatching(`[#+:a-z0-9\r-]{0,20}`).Draw(t, "line"))
				continue
			}
			name := fmt.Sprintf("n%d%s", i, rapid.StringMatching(`[a-z@.\\ -]{0,10}`).Draw(t, "name"))
			want[name] = rapid.IntRange(0, 1<<32-2).Draw(t, "id")
			lines = append(lines, fmt.Sprintf("%s:x:%d:0::/:/bin/sh", name, want[name]))
		}
		got := map[string]int{}
		for _, e := range parse([]byte(strings.Join(lines, "\n"))) {
			if _, listed := want[e.name]; listed {
				got[e.name] = e.id
			}
			if e.id < 0 || e.id >= 1<<32-1 || !queryable(e.name) {
				t.Errorf("%+v is invalid", e)
			}
		}
		if !cmp.Equal(want, got) {
			t.Errorf("read %v of %v", got, want)
		}
	})
}

// TestNamesOfADirectory: Active Directory has groups and users with spaces, and winbind and sssd put the domain before or after
// them, and answer in lower case.
func TestNamesOfADirectory(t *testing.T) {
	h := newFixture(t, `
kind=$1; shift; missing=0
for key; do
	case "$kind:$key" in
	'group:CORP\Domain Users'|'group:CORP\domain users') printf '%s\n' 'CORP\domain users:x:10513:' ;;
	'group:domain users@corp.example') printf '%s\n' 'domain users@corp.example:*:20513:jane doe@corp.example' ;;
	'group:gpu team 7') printf '%s\n' 'gpu team 7:x:30007:' ;;
	'passwd:CORP\jane doe') printf '%s\n' 'CORP\jane doe:*:11001:10513:Jane:/home/jane:/bin/sh' ;;
	'passwd:node 10') printf '%s\n' 'node 10:*:11002:10513::/:/bin/sh' ;;
	'initgroups:CORP\jane doe') printf '%-21s %s\n' "$key" '10513 30007' ;;
	'initgroups:node 10') printf '%-21s %s\n' "$key" '10513' ;;
	*) missing=2 ;;
	esac
done
exit $missing`)
	h.refresh(
		t,
		[]string{`CORP\jane doe`, "node 10"},
		[]string{`CORP\Domain Users`, `CORP\domain users`, "domain users@corp.example", "gpu team 7", "gpu team"},
	)
	h.group(t, `CORP\Domain Users`, 10513, Present)
	h.group(t, `CORP\domain users`, 10513, Present)
	h.group(t, "domain users@corp.example", 20513, Present)
	h.group(t, "gpu team 7", 30007, Present)
	h.group(t, "gpu team", -1, Absent)
	h.user(t, `CORP\jane doe`, 11001, Present)
	for user, want := range map[string][]int{`CORP\jane doe`: {10513, 30007}, "node 10": {10513}} {
		got, err := h.GroupsOf(t.Context(), user)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("groups of %q: %v (-want +got):\n%s", user, err, d)
		}
	}
	h.script(t, `case $1 in passwd) echo 'eve:*:11003:10513::/:/bin/sh' ;; *) echo 'mallory 0 10' ;; esac`)
	if got, err := h.GroupsOf(t.Context(), "eve"); err == nil {
		t.Errorf("the groups of another user are taken: %v", got)
	}
}
