package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// The people of these tests. The processes of all keep the groups that they began with.
const (
	uidAlice = 471301 // a member by name
	uidCarol = 471302 // a member by the group club
	uidBoss  = 471303 // a member by name who stays one
	uidOlga  = 471304 // an observer
	uidAdam  = 471305 // an administrator
	gidClub  = 471311
	gidRead  = 471312
	gidAdmin = 471313
)

const clubSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: exclusive}
  - {select: {index: 3}, mode: timeslice}
tenants:
  - name: far
    members: {users: [alice, boss], groups: [club]}
    grants:
      - {name: whole, exclusive: 1}
      - {name: part, timeslice: {share: 10%, gpu_memory: 1GiB}}
`

// club is the directory. Who is not among the members of a group has left it.
func club(club, observers, admins string) string {
	return answers("alice:*:471301:471301::/:/bin/sh", "carol:*:471302:471302::/:/bin/sh", "boss:*:471303:471303::/:/bin/sh",
		"olga:*:471304:471304::/:/bin/sh", "adam:*:471305:471305::/:/bin/sh",
		"club:*:471311:"+club, "gpushare:*:471312:"+observers, "gpushare-admin:*:471313:"+admins)
}

// removals is a node with these people.
type removals struct {
	*harness.Node
	t *testing.T
}

func startRemovals(t *testing.T) *removals {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	n := inDirectory(t)
	directory(t, n, club("carol", "olga", "adam"))
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, clubSpec)
	return &removals{n, t}
}

// changed changes the directory, and lets the daemon ask it.
func (n *removals) changed(script string) {
	n.t.Helper()
	directory(n.t, n.Node, script)
	n.queries()
}

func (n *removals) queries() {
	n.t.Helper()
	if r := n.CLI(soon(n.t), "config", "reload"); r.Code != 0 {
		n.t.Fatalf("reload exits with %d: %s", r.Code, r.Err)
	}
}

func groupsOf(uid uint32) []uint32 {
	return map[uint32][]uint32{uidCarol: {gidClub}, uidOlga: {gidRead}, uidAdam: {gidAdmin}}[uid]
}

// as runs gpushare as one of the people.
func (n *removals) as(uid uint32, args ...string) harness.Result {
	n.t.Helper()
	return asUID(n.t, n.Node, uid, uid, groupsOf(uid), args...)
}

// spawn starts gpushare as one of the people.
func (n *removals) spawn(uid uint32, args ...string) *harness.Job {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(n.Bin, "gpushare"), args...)
	cmd.Env, cmd.Dir = n.Environ(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groupsOf(uid)}}
	job, err := n.Spawn(cmd)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(job.Kill)
	return job
}

// runs starts a command under a lease as one of the people, and returns its lease.
func (n *removals) runs(uid uint32, grant string) (*harness.Job, string) {
	n.t.Helper()
	job := n.spawn(uid, "run", "-q", "--grant", grant, "--", "sh", "-c", `echo "lease=$GPUSHARE_LEASE."; exec sleep 600`)
	if err := job.AwaitLine(soon(n.t), "."); err != nil {
		n.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(job.Output(), "lease=")
	id, _, _ := strings.Cut(rest, ".")
	return job, id
}

// waits starts a request of one of the people that waits for the GPU that another one has.
func (n *removals) waits(uid uint32, position int, args ...string) *harness.Job {
	n.t.Helper()
	job := n.spawn(uid, append(append([]string{"run", "--grant", "whole", "--wait"}, args...), "--", "touch", n.placed())...)
	awaitStatus(n.t, n.Node, "the request does not wait", func(s *api.Status) bool {
		waiting := 0
		for _, l := range s.Leases {
			if l.State == api.LeaseQueued {
				waiting++
			}
		}
		return waiting == position
	})
	return job
}

// placed is a file that a command makes if it gets a GPU.
func (n *removals) placed() string { return filepath.Join(n.Dir, "placed") }

// awaitDenied waits until a command ends because its user has lost the right to it.
func awaitDenied(t *testing.T, what string, job *harness.Job, says string) {
	t.Helper()
	code := awaitEnd(t, job)
	if code == 0 || !strings.Contains(job.Output(), says) {
		t.Errorf("%s exits with %d, without %q:\n%s", what, code, says, job.Output())
	}
}

// A member who is removed while they wait gets no GPU: the request ends at once, and says why.
func TestRemovedWhileWaiting(t *testing.T) {
	t.Parallel()
	n := startRemovals(t)
	open(t, n.Dir)
	if err := os.Chmod(n.Dir, 0o777); err != nil { // So that the commands could make that file.
		t.Fatal(err)
	}
	_, held := n.runs(uidBoss, "whole")
	plain, detached := n.waits(uidAlice, 1), n.waits(uidAlice, 2, "--detach")
	limited := n.waits(uidAlice, 3, "--wait=1h")
	byGroup, byGroupDetached := n.waits(uidCarol, 4), n.waits(uidCarol, 5, "--detach")

	apply(t, n.Node, replaced(t, clubSpec, "[alice, boss]", "[boss]"))
	for what, job := range map[string]*harness.Job{"a request": plain, "a detached one": detached, "one with a limit": limited} {
		awaitDenied(t, what, job, "alice is not a member of tenant far any more")
	}
	n.changed(club("", "olga", "adam"))
	for what, job := range map[string]*harness.Job{"a request": byGroup, "a detached one": byGroupDetached} {
		awaitDenied(t, what+" by a group", job, "carol is not a member of tenant far any more")
	}
	for uid, name := range map[uint32]string{uidAlice: "alice", uidCarol: "carol"} {
		if r := n.as(uid, "run", "--grant", "part", "--", "true"); r.Code != 125 || !strings.Contains(r.Err, name+" may not run on a GPU") {
			t.Errorf("another request of %s exits with %d: %s", name, r.Code, r.Err)
		}
	}
	if r := n.as(uidBoss, "lease", "stop", held); r.Code != 0 {
		t.Fatalf("stop exits with %d: %s", r.Code, r.Err)
	}
	s := awaitStatus(t, n.Node, "leases are left", func(s *api.Status) bool { return len(s.Leases) == 0 })
	if _, err := os.Stat(n.placed()); err == nil {
		t.Errorf("a removed member got the GPU: %+v", s.Leases)
	}
	if r := n.as(uidBoss, "run", "--grant", "whole", "--", "true"); r.Code != 0 {
		t.Errorf("a member's run exits with %d: %s", r.Code, r.Err)
	}
}

// What a user follows ends with their role, with a sentence that says why.
func TestRemovedWhileFollowing(t *testing.T) {
	t.Parallel()
	n := startRemovals(t)
	r := n.as(uidBoss, "run", "-q", "--detach", "--grant", "part", "--", "sh", "-c", "echo begun; exec sleep 600")
	if r.Code != 0 {
		t.Fatalf("run --detach exits with %d: %s", r.Code, r.Err)
	}
	id := strings.TrimSpace(r.Out)
	awaitLogs(t, n.Node, id, "begun")

	followers := map[string]*harness.Job{
		"events of a member by group": n.spawn(uidCarol, "events", "--json"),
		"events of an observer":       n.spawn(uidOlga, "events", "--json"),
		"events of an administrator":  n.spawn(uidAdam, "events", "--json"),
		"output of an administrator":  n.spawn(uidAdam, "lease", "logs", "-f", id),
		"top of a member by group":    n.spawn(uidCarol, "top", "-b", "-d", "500ms"),
		"top of an observer":          n.spawn(uidOlga, "top", "-b", "-d", "500ms"),
	}
	if err := followers["output of an administrator"].AwaitLine(soon(t), "begun"); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"top of a member by group", "top of an observer"} {
		if err := followers[what].AwaitLine(soon(t), "GPU"); err != nil {
			t.Fatal(err)
		}
	}
	n.subscribed(followers)

	n.changed(club("", "", ""))
	for what, says := range map[string]string{
		"events of a member by group": "carol may not follow events any more", "events of an observer": "olga may not follow events any more",
		"events of an administrator": "adam may not follow events any more", "output of an administrator": "any more",
		"top of a member by group": "carol may not read the status", "top of an observer": "olga may not read the status",
	} {
		awaitDenied(t, what, followers[what], says)
	}
	for uid, args := range map[uint32][]string{uidCarol: {"status"}, uidOlga: {"status"}, uidAdam: {"lease", "stop", id}} {
		if r := n.as(uid, args...); r.Code != api.ExitDenied {
			t.Errorf("%v as %d exits with %d: %s", args, uid, r.Code, r.Err)
		}
	}
}

// subscribed waits until the readers of events get them, by leases that start and end.
func (n *removals) subscribed(followers map[string]*harness.Job) {
	n.t.Helper()
	for what, job := range followers {
		if !strings.HasPrefix(what, "events") {
			continue
		}
		err := harness.Await(soon(n.t), 10*time.Millisecond, what+" do not come", func() (bool, error) {
			if r := n.as(uidBoss, "run", "--grant", "part", "--", "true"); r.Code != 0 {
				return false, fmt.Errorf("run exits with %d: %s", r.Code, r.Err)
			}
			return strings.Contains(job.Output(), "lease.started"), nil
		})
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// Leases of removed members go on, and stay their users' own.
func TestRemovedWhileRunning(t *testing.T) {
	t.Parallel()
	n := startRemovals(t)
	_, lease := n.runs(uidAlice, "whole")
	r := n.as(uidAlice, "run", "-q", "--detach", "--grant", "part", "--", "sh", "-c", "echo begun; exec sleep 600")
	if r.Code != 0 {
		t.Fatalf("run --detach exits with %d: %s", r.Code, r.Err)
	}
	detached := strings.TrimSpace(r.Out)
	awaitLogs(t, n.Node, detached, "begun")
	_, byGroup := n.runs(uidCarol, "part")
	follower := n.spawn(uidAlice, "lease", "logs", "-f", detached)
	if err := follower.AwaitLine(soon(t), "begun"); err != nil {
		t.Fatal(err)
	}

	without := replaced(t, clubSpec, "[alice, boss]", "[boss]")
	if r := n.CLIIn(
		soon(t), without, "apply", "-f", "-", "--check",
	); !strings.Contains(r.Out+r.Err, "2 leases of removed members of tenant far will go on (on_removal: continue)") ||
		!strings.Contains(r.Out+r.Err, lease+" (alice)") {
		t.Errorf("the plan says\n%s%s", r.Out, r.Err)
	}
	apply(t, n.Node, without)
	awaitStatus(t, n.Node, "the lease has no notice", func(s *api.Status) bool {
		l := leaseByID(s, lease)
		return l != nil &&
			strings.Contains(strings.Join(l.Notices, "\n"), "alice is not a member of tenant far any more: this lease goes on")
	})
	n.changed(club("", "olga", "adam"))
	awaitStatus(t, n.Node, "the lease of carol has no notice", func(s *api.Status) bool {
		l := leaseByID(s, byGroup)
		return l != nil &&
			strings.Contains(strings.Join(l.Notices, "\n"), "carol is not a member of tenant far any more: this lease goes on")
	})
	// It is theirs all the same, and nothing else of the tenant is.
	if r := n.as(uidAlice, "lease", "list"); r.Code != 0 || !strings.Contains(r.Out, lease) || strings.Contains(r.Out, byGroup) {
		t.Errorf("the list of a removed member exits with %d:\n%s%s", r.Code, r.Out, r.Err)
	}
	if r := n.as(uidAlice, "explain", lease); r.Code != 0 || !strings.Contains(r.Out, "on_removal") {
		t.Errorf("explain exits with %d:\n%s%s", r.Code, r.Out, r.Err)
	}
	if r := n.as(uidAlice, "lease", "logs", detached); r.Code != 0 || !strings.Contains(r.Out, "begun") {
		t.Errorf("the output exits with %d:\n%s%s", r.Code, r.Out, r.Err)
	}
	if r := n.as(uidAlice, "lease", "stop", byGroup); r.Code == 0 {
		t.Errorf("a removed member stopped the lease of another: %s", r.Out)
	}
	if r := n.as(uidAlice, "status"); r.Code != api.ExitDenied {
		t.Errorf("the status of a removed member exits with %d: %s", r.Code, r.Err)
	}
	for uid, ids := range map[uint32][]string{uidAlice: {lease, detached}, uidCarol: {byGroup}} {
		for _, id := range ids {
			if r := n.as(uid, "lease", "stop", id); r.Code != 0 {
				t.Errorf("the stop of an own lease exits with %d: %s", r.Code, r.Err)
			}
		}
	}
	if code := awaitEnd(t, follower); code != 0 { // It may read the output of its own lease to the end.
		t.Errorf("the reader of an own output exits with %d: %s", code, follower.Output())
	}
}

// With on_removal: stop the leases of removed members are stopped: by an apply with force, or when the directory has said it twice.
func TestRemovedMembersAreStopped(t *testing.T) {
	t.Parallel()
	n := startRemovals(t)
	stops := replaced(t, clubSpec, "- name: far\n", "- name: far\n    on_removal: stop\n")
	apply(t, n.Node, stops)
	alices, lease := n.runs(uidAlice, "whole")
	carols, byGroup := n.runs(uidCarol, "part")
	_, kept := n.runs(uidBoss, "part")

	without := replaced(t, stops, "[alice, boss]", "[boss]")
	r := n.CLIIn(soon(t), without, "apply", "-f", "-")
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, lease) || !strings.Contains(r.Err, "--force") {
		t.Errorf("without force apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if leaseByID(status(t, n.Node), lease) == nil {
		t.Fatal("the refused apply stopped the lease")
	}
	if r = n.CLIIn(soon(t), without, "apply", "-f", "-", "--force"); r.Code != 0 ||
		!strings.Contains(r.Out+r.Err, "1 lease of removed members of tenant far will stop") {
		t.Errorf("with force apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	awaitEnd(t, alices)
	if leaseByID(status(t, n.Node), byGroup) == nil {
		t.Fatal("the lease of a member was stopped")
	}

	events := follow(t, n.Node)
	n.changed(club("", "olga", "adam"))
	if e := events.await(t, "lease.member-removed", byGroup); !strings.Contains(
		e.Message, "carol is not a member of tenant far any more: this lease will be stopped",
	) {
		t.Errorf("the event is %+v", e)
	}
	awaitEnd(t, carols)
	if r := n.CLI(soon(t), "audit"); !strings.Contains(r.Out, "lease "+byGroup+" of user carol is stopped: carol is not a member") {
		t.Errorf("the audit says\n%s", r.Out)
	}
	if leaseByID(status(t, n.Node), kept) == nil {
		t.Error("the lease of a member was stopped")
	}
}

// A directory that says nothing ends no lease, and one that takes back what it said neither.
func TestALeaseOutlivesAWrongAnswer(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := startRemovals(t)
	n.StopDaemon()
	n.Settings["converge_interval"] = "5m" // It does not ask again by itself within this test.
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n.Node, replaced(t, clubSpec, "- name: far\n", "- name: far\n    on_removal: stop\n"))
	_, id := n.runs(uidCarol, "part")
	events := follow(t, n.Node)
	n.changed(club("", "olga", "adam"))
	events.await(t, "lease.member-removed", id)
	n.changed("exec sleep 600")
	awaitStatus(
		t, n.Node, "no condition reports that the directory hangs",
		func(s *api.Status) bool { return hasCondition(s, "names", "did not answer") },
	)
	if r := n.as(uidCarol, "run", "--grant", "part", "--", "true"); r.Code != 125 {
		t.Errorf("a run of a removed member exits with %d: %s", r.Code, r.Err)
	}
	n.changed(club("carol", "olga", "adam"))
	awaitStatus(t, n.Node, "the directory does not answer again", func(s *api.Status) bool { return !hasCondition(s, "names", "") })
	if r := n.as(uidCarol, "run", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("a run of a member who is back exits with %d: %s", r.Code, r.Err)
	}
	if l := leaseByID(status(t, n.Node), id); l == nil || l.State != api.LeaseRunning {
		t.Errorf("the lease is %+v", l)
	}
}
