package server_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/programs"
)

// people are identities with a directory that the test changes.
type people struct {
	*server.Identities
	t      *testing.T
	now    time.Time
	getent string
	spec   *api.Spec
}

const peopleAnswer = `
case $1:$2 in
passwd:alice|passwd:5001) echo 'alice:*:5001:5001::/:/bin/sh' ;;
passwd:carol|passwd:5002) echo 'carol:*:5002:5002::/:/bin/sh' ;;
group:vision) echo 'vision:*:6001:' ;;
group:gpushare-admin) echo 'gpushare-admin:*:6002:' ;;
group:gpushare) echo 'gpushare:*:6003:' ;;
initgroups:carol) echo 'carol 6001 6002 6003' ;;
initgroups:alice) echo 'alice' ;;
*) exit 2 ;;
esac`

func newPeople(t *testing.T) *people {
	t.Helper()
	p := &people{t: t, now: time.Unix(100000, 0), getent: filepath.Join(t.TempDir(), "getent")}
	p.spec = &api.Spec{
		Tenants: []api.TenantSpec{{Name: "vision", Members: api.Members{Users: []string{"alice"}, Groups: []string{"vision"}}}},
	}
	clock := func() time.Time { return p.now }
	tasks := &loop.Group{}
	t.Cleanup(tasks.Wait)
	p.Identities = server.NewIdentities(report.NewReporter(slog.New(slog.DiscardHandler), clock), tasks, servertest.UidSelf, p.getent)
	p.ChecksGroups, p.Names.Now, p.Names.Timeout = true, clock, 10*time.Second
	p.Names.Passwd, p.Names.Group = filepath.Join(t.TempDir(), "passwd"), filepath.Join(t.TempDir(), "group")
	for _, file := range []string{p.Names.Passwd, p.Names.Group} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p.Spec = func() *api.Spec { return p.spec }
	p.answers(peopleAnswer)
	p.queries()
	return p
}

func (p *people) answers(script string) {
	p.t.Helper()
	if err := programs.Write(p.getent+".new", "#!/bin/sh\n"+script+"\n"); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(p.getent+".new", p.getent); err != nil {
		p.t.Fatal(err)
	}
}

func (p *people) queries() { p.QueryNames(p.spec, 30*time.Second, true) }

// learn lets the directory be asked about a user: first for the name, then for the groups.
func (p *people) learn(peer *server.Peer) {
	for range 2 {
		p.Caller(peer)
		p.queries()
	}
}

func carol() *server.Peer { return &server.Peer{UID: 5002, GID: 5002, Groups: []int{6001, 6002, 6003}} }
func alice() *server.Peer { return &server.Peer{UID: 5001, GID: 5001} }

// standing is what a request of a peer gets in tenant vision.
func (p *people) standing(peer *server.Peer) string {
	s := p.RequesterOf(p.Caller(peer)).Standing("vision")
	switch {
	case s.Denied != "":
		return "denied: " + s.Denied
	case s.Unsure != "":
		return "unsure: " + s.Unsure
	}
	return "may"
}

func (p *people) want(what string, peer *server.Peer, role, standing string) {
	p.t.Helper()
	if got := p.Caller(peer).Role(); got != role {
		p.t.Errorf("%s: the role is %s, want %s", what, got, role)
	}
	if got := p.standing(peer); !strings.HasPrefix(got, standing) {
		p.t.Errorf("%s: a request %s, want %s", what, got, standing)
	}
}

// A role by a group ends when the user leaves the group, although their processes keep it.
func TestRolesFollowTheDirectory(t *testing.T) {
	p := newPeople(t)
	p.want("before the directory was asked about the user", carol(), "admin", "unsure: this host's directory has not answered yet")
	p.learn(carol())
	p.want("an administrator", carol(), "admin", "may")
	p.want("a member", alice(), "member", "may")
	next := p.Next()
	p.answers(strings.Replace(peopleAnswer, "carol 6001 6002 6003", "carol 6001 6003", 1))
	p.queries()
	p.want("after they left the administrators", carol(), "member", "may")
	select {
	case <-next:
	default:
		t.Error("the change wakes nothing")
	}
	p.answers(strings.Replace(peopleAnswer, "carol 6001 6002 6003", "carol 6003", 1))
	p.queries()
	p.want("after they left the tenant's group", carol(), "observer", "denied: carol is not a member of tenant vision any more")
	p.answers(strings.Replace(peopleAnswer, "carol 6001 6002 6003", "carol", 1))
	p.queries()
	p.want("after they left all groups", carol(), "none", "denied")
	p.answers(
		strings.NewReplacer("passwd:alice|passwd:5001", "passwd:missing", "passwd:carol|passwd:5002", "passwd:none").Replace(peopleAnswer),
	)
	p.queries()
	p.want("a removed account", alice(), "none", "denied")
	p.want("a removed account of a group", carol(), "none", "denied")
	// A service has the groups that its unit gives it, of which no directory knows.
	p.want("a service", &server.Peer{UID: 999, GID: 999, Groups: []int{6003}}, "observer", "denied")
	p.want("a service with a uid of systemd", &server.Peer{UID: 61200, GID: 61200, Groups: []int{6001}}, "member", "may")
}

// A directory that hangs takes no role, and after a while gives nothing either.
func TestAnswersGetTooOld(t *testing.T) {
	p := newPeople(t)
	p.learn(carol())
	p.answers("exit 1")
	p.now = p.now.Add(9 * time.Minute)
	p.queries()
	p.want("after 9 minutes", carol(), "admin", "may")
	p.want("after 9 minutes, by name", alice(), "member", "may")
	p.now = p.now.Add(2 * time.Minute)
	p.queries()
	p.want(
		"after 11 minutes", carol(), "admin",
		"unsure: this host's directory has not answered for 11m whether carol is a member of tenant vision: getent failed",
	)
	p.want("after 11 minutes, by name", alice(), "member", "unsure: this host's directory has not answered for 11m whether alice")
	if why, _ := p.Removed(5002, "vision"); why != "" {
		t.Errorf("a lease ends because the directory does not answer: %s", why)
	}
	p.answers(peopleAnswer)
	p.queries()
	p.want("when it answers", carol(), "admin", "may")
	p.want("when it answers, by name", alice(), "member", "may")
}

// Who has a group that the directory does not give them reads why in the refusal: units of services give such groups.
func TestGroupOfAProcessAlone(t *testing.T) {
	p := newPeople(t)
	service := &server.Peer{UID: 5001, GID: 5001, Groups: []int{6003, 6001, 6002}}
	p.spec.Tenants[0].Members.Users = nil
	p.learn(service)
	err := server.Denied(server.Admin, p.Caller(service), "try")
	if want := "alice may not try: the process has the group gpushare-admin, but the directory does not say that alice is in it"; err.Message != want {
		t.Errorf("got %q, want %q", err.Message, want)
	}
	if want := "'gpasswd -a alice gpushare-admin' adds them"; err.Hint != want || err.Kind != api.KindDenied {
		t.Errorf("got %s with the hint %q, want %q", err.Kind, err.Hint, want)
	}
	service.Groups = []int{6003, 6001}
	if err := server.Denied(server.Member, p.Caller(service), "try"); !strings.Contains(err.Message, "has the group vision") {
		t.Errorf("got %q", err.Message)
	}
	if err := server.Denied(server.Admin, p.Caller(service), "try"); strings.Contains(err.Message, "has the group") ||
		strings.Contains(err.Hint, "gpasswd") {
		t.Errorf("the group gives another role: %q, %q", err.Message, err.Hint)
	}
}

// One user about whom the directory does not answer is named, and takes nothing from the others.
func TestOneUserIsNotConfirmed(t *testing.T) {
	p := newPeople(t)
	p.learn(carol())
	p.learn(alice())
	p.answers("case $1:$2 in passwd:5001|passwd:alice) exit 1 ;; esac\n" + peopleAnswer)
	for range 6 {
		p.now = p.now.Add(2 * time.Minute)
		if unsure := p.ConfirmUsers(t.Context(), []int{0, 5001, 5002}); !slices.Equal(unsure, []int{5001}) {
			t.Errorf("the directory does not answer about %v", unsure)
		}
		p.queries()
	}
	p.want("another user", carol(), "admin", "may")
	p.want("the user", alice(), "member", "unsure: this host's directory has not answered for 12m")
	// A right that is used is confirmed although the directory does not answer about another user.
	p.now = p.now.Add(20 * time.Minute)
	if s := p.RequesterOf(p.Caller(carol())).Confirm(t.Context(), "vision"); s != (lease.Standing{}) {
		t.Errorf("another user: %+v", s)
	}
}

// Of a lease no process is asked: its user is removed when the directory says so, with the time of its oldest word on it.
func TestRemoved(t *testing.T) {
	p := newPeople(t)
	p.learn(carol())
	if unsure := p.ConfirmUsers(t.Context(), []int{0, 5001, 5002}); len(unsure) != 0 {
		t.Errorf("the directory does not answer about %v", unsure)
	}
	for uid, name := range map[int]string{0: "root", 5001: "a member", 5002: "a member by a group", servertest.UidSelf: "the daemon's user"} {
		if why, _ := p.Removed(uid, "vision"); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
	p.answers(strings.Replace(peopleAnswer, "carol 6001 6002 6003", "carol 6003", 1))
	p.queries()
	why, at := p.Removed(5002, "vision")
	if why != "carol is not a member of tenant vision any more" || !at.Equal(p.now) {
		t.Errorf("%q at %v", why, at)
	}
	p.now = p.now.Add(time.Minute)
	if _, again := p.Removed(5002, "vision"); !again.Equal(at) {
		t.Errorf("without an answer it is of %v", again)
	}
	p.spec = &api.Spec{Tenants: []api.TenantSpec{{Name: "vision"}}}
	p.queries()
	if why, at := p.Removed(5001, "vision"); why != "alice is not a member of tenant vision any more" || !at.Equal(p.now) {
		t.Errorf("removed from the spec: %q at %v", why, at)
	}
}
