package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

// A user that only the directory service knows.
const (
	remoteUID = 471100
	remoteGID = 471101
)

// directory atomically replaces the getent program that the daemon runs.
func directory(t *testing.T, n *harness.Node, script string) {
	t.Helper()
	file := n.Settings["getent"]
	if err := programs.Write(file+".new", "#!/bin/sh\n"+script+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// answers is a getent script that knows only the users and groups of these lines. Lines of users have seven fields.
func answers(lines ...string) string {
	s := "db=$1; shift; missing=2\nfor key; do case $db:$key in\n"
	for _, l := range lines {
		f := strings.Split(l, ":")
		if len(f) < 7 {
			s += fmt.Sprintf("group:%s|group:%s) echo '%s'; missing=0 ;;\n", f[0], f[2], l)
			continue
		}
		s += fmt.Sprintf("passwd:%s|passwd:%s) echo '%s'; missing=0 ;;\n", f[0], f[2], l)
		groups := f[0]
		for _, g := range lines {
			if g := strings.Split(g, ":"); len(g) == 4 && slices.Contains(strings.Split(g[3], ","), f[0]) {
				groups += " " + g[2]
			}
		}
		s += fmt.Sprintf("initgroups:%s) echo '%s'; missing=0 ;;\n", f[0], groups)
	}
	return s + "esac; done; exit $missing"
}

// inDirectory prepares a node whose daemon uses the getent of the test.
func inDirectory(t *testing.T) *harness.Node {
	t.Helper()
	n := newNode(t, quick)
	n.Settings = map[string]string{"getent": filepath.Join(t.TempDir(), "getent"), "converge_interval": "1s"}
	return n
}

// open gives other users access to a directory of the test.
func open(t *testing.T, dir string) {
	t.Helper()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// asUID runs gpushare as a user with these supplementary groups.
func asUID(t *testing.T, n *harness.Node, uid, gid uint32, groups []uint32, args ...string) harness.Result {
	t.Helper()
	cmd := exec.CommandContext(soon(t), filepath.Join(n.Bin, "gpushare"), args...)
	cmd.Env, cmd.Dir = n.Environ(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // The exit code is checked.
	return harness.Result{Code: cmd.ProcessState.ExitCode(), Out: out.String(), Err: errs.String()}
}

const remoteSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: timeslice}
tenants:
  - name: far
    members: {users: [remote], groups: [club]}
    grants: [{name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}]
`

// hasCondition reports whether the status has a condition of a kind that contains text.
func hasCondition(s *api.Status, kind, text string) bool {
	for _, c := range s.Node.Conditions {
		if c.Kind == kind && strings.Contains(c.Message, text) {
			return true
		}
	}
	return false
}

// A member that only the directory knows is identified, and a member that is added there later needs no restart.
func TestMembersOfADirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := inDirectory(t)
	fellow := "fellow:*:471103:471101::/:/bin/sh"
	directory(t, n, answers("club:*:471102:fellow", fellow))
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	r := n.CLIIn(soon(t), remoteSpec, "apply", "-f", "-")
	if r.Code != 0 || !strings.Contains(r.Out+r.Err, "does not know user remote of tenant far") {
		t.Errorf("apply exits with %d and does not warn: %s%s", r.Code, r.Out, r.Err)
	}
	awaitStatus(
		t, n, "no condition reports that remote is unknown",
		func(s *api.Status) bool { return hasCondition(s, "unknown-member", "user remote") },
	)
	if r := asUID(t, n, remoteUID, remoteGID, nil, "status"); r.Code != api.ExitDenied || !strings.Contains(r.Err, "uid 471100 may not") {
		t.Errorf("an unknown user's status exits with %d: %s", r.Code, r.Err)
	}
	if r := asUID(t, n, 471103, remoteGID, []uint32{471102}, "run", "--", "true"); r.Code != 0 {
		t.Errorf("a run by a group of the directory exits with %d: %s", r.Code, r.Err)
	}
	// A process keeps the groups of its start, and root can give it any: the directory decides.
	for uid, who := range map[uint32]string{471104: "a user that the directory does not know", remoteUID: "a user that it does not know yet"} {
		if r := asUID(t, n, uid, remoteGID, []uint32{471102}, "run", "--", "true"); r.Code != 125 {
			t.Errorf("a run by %s, whose process has the group, exits with %d: %s", who, r.Code, r.Err)
		}
	}
	directory(t, n, answers("club:*:471102:fellow", fellow, "remote:*:471100:471101::/:/bin/sh"))
	awaitStatus(t, n, "remote stays unknown", func(s *api.Status) bool { return !hasCondition(s, "unknown-member", "") })
	if r := asUID(t, n, remoteUID, remoteGID, nil, "run", "--", "true"); r.Code != 0 {
		t.Errorf("a member's run exits with %d: %s", r.Code, r.Err)
	}
	if r := asUID(t, n, remoteUID, remoteGID, nil, "get"); r.Code != api.ExitDenied || !strings.Contains(r.Err, "remote may not") {
		t.Errorf("a member's get exits with %d: %s", r.Code, r.Err)
	}
}

// A hanging directory delays no request and removes no known user. A condition reports it until it answers.
func TestDirectoryHangs(t *testing.T) {
	enumeration.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := inDirectory(t)
	directory(t, n, answers("remote:*:471100:471101::/:/bin/sh", "club:*:471102:"))
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, remoteSpec)
	directory(t, n, "exec sleep 600")
	if r := n.CLI(soon(t), "config", "reload"); r.Code != 0 {
		t.Fatalf("reload exits with %d: %s", r.Code, r.Err)
	}
	awaitStatus(
		t, n, "no condition reports that the directory hangs",
		func(s *api.Status) bool { return hasCondition(s, "names", "did not answer") },
	)
	for range 3 { // While it is queried all the time.
		began := time.Now()
		r := asUID(t, n, remoteUID, remoteGID, nil, "run", "--", "true")
		if elapsed := time.Since(began); r.Code != 0 || elapsed > 1500*time.Millisecond {
			t.Errorf("a known member's run exits with %d after %v: %s", r.Code, elapsed, r.Err)
		}
		began = time.Now()
		r = asUID(t, n, 471109, remoteGID, nil, "status")
		if elapsed := time.Since(began); r.Code != api.ExitDenied || elapsed > 1500*time.Millisecond {
			t.Errorf("status without a role exits with %d after %v: %s", r.Code, elapsed, r.Err)
		}
	}
	apply(t, n, replaced(t, remoteSpec, "[remote]", "[remote, later]"))
	awaitStatus(t, n, "no condition reports that later is unknown", func(s *api.Status) bool {
		return hasCondition(s, "unknown-member", "has not answered about user later")
	})
	// The start of the daemon waits for it only up to a deadline. Until it answers only users of local files are known.
	n.StopDaemon()
	began := time.Now()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if elapsed := time.Since(began); elapsed > 5*time.Second {
		t.Errorf("the start took %v", elapsed)
	}
	directory(t, n, answers("remote:*:471100:471101::/:/bin/sh", "club:*:471102:", "later:*:471105:1::/:/bin/sh"))
	awaitStatus(t, n, "the condition stays although the directory answers", func(s *api.Status) bool {
		return !hasCondition(s, "names", "") && !hasCondition(s, "unknown-member", "")
	})
	if r := asUID(t, n, remoteUID, remoteGID, nil, "run", "--", "true"); r.Code != 0 {
		t.Errorf("a member's run exits with %d: %s", r.Code, r.Err)
	}
}
