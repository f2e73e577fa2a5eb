package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// auditFile is a file of the audit of a node.
func auditFile(dir string, number int) string {
	return filepath.Join(dir, "state", "audit", fmt.Sprintf("audit-%06d.log", number))
}

// What root does to the files is found by the shipped programs: while the daemon runs, after its next start, and offline. A line of
// the journal shows it on another host.
func TestVerifyFindsRemovedLines(t *testing.T) {
	n := inDirectory(t)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, small)
	offline := []string{"audit", "--verify", "--state-dir", filepath.Join(n.Dir, "state")}
	verify := func(about string, code int, want []string, args ...string) {
		t.Helper()
		r := n.CLI(soon(t), args...)
		if r.Code != code {
			t.Errorf("%s: %q exits with %d:\n%s%s", about, args, r.Code, r.Out, r.Err)
		}
		for _, w := range want {
			if !strings.Contains(r.Out, w) {
				t.Errorf("%s: %q does not say %q:\n%s%s", about, args, w, r.Out, r.Err)
			}
		}
	}
	both := func(about string, code int, want ...string) {
		t.Helper()
		verify(about, code, want, "audit", "--verify")
		verify(about, code, want, offline...)
	}
	both("untouched", 0, "ok: every line follows")

	// The newest line is in the log when the daemon ends.
	n.StopDaemon()
	log, err := os.ReadFile(n.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	anchors := regexp.MustCompile(`audit anchor.*number="?([0-9]+)"?.*sha256="?([0-9a-f]{64})`).FindAllSubmatch(log, -1)
	if len(anchors) == 0 {
		t.Fatalf("the log has no anchor:\n%s", log)
	}
	anchor := fmt.Sprintf("%s:%s", anchors[len(anchors)-1][1], anchors[len(anchors)-1][2])
	verify("the anchor of the log", 0, nil, append(offline, "--anchor", anchor)...)
	verify(
		"an anchor of other lines",
		api.ExitDegraded,
		[]string{"written again"},
		append(offline, "--anchor", anchor[:len(anchor)-64]+strings.Repeat("0", 64))...)

	// The last line is removed while it does not run.
	b, err := os.ReadFile(auditFile(n.Dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	last := len(lines) - 1 // the number of the last line
	cut := bytes.Join(lines[:last-1], nil)
	if err := os.WriteFile(auditFile(n.Dir, 1), cut, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := fmt.Sprintf("line %d is not there, written", last)
	verify("the last line removed", api.ExitDegraded, []string{"the lines after it were removed", missing}, offline...)
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	both("the last line removed, after a start", api.ExitDegraded, "were removed", missing)
	awaitAuditCondition(
		t, n, fmt.Sprintf("lines %d to %d of the audit are missing: they were removed while gpushared did not run", last, last),
	)

	// The file is removed while it runs: the next action is in a new one.
	if err := os.Remove(auditFile(n.Dir, 1)); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "config", "reload"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	both("the file removed", api.ExitDegraded, "missing: audit-000001.log", "lines 1 to ", "are not there, written until ")
	if _, err := os.Stat(auditFile(n.Dir, 2)); err != nil {
		t.Errorf("the next line is not in a new file: %v", err)
	}
	awaitAuditCondition(t, n, "audit-000001.log was removed while gpushared ran")

	// A kill of the daemon loses nothing that was written, and is no finding of its own.
	before := n.CLI(soon(t), "audit", "--verify")
	n.KillDaemon()
	after := n.CLI(soon(t), offline...)
	if findings := func(s string) int { return strings.Count(s, "broken: ") }; findings(before.Out) != findings(after.Out) {
		t.Errorf("before the kill\n%s\nand after it\n%s", before.Out, after.Out)
	}
	if err := n.StartDaemon(soon(t)); err != nil { // The node is unmanaged at the end.
		t.Error(err)
	}
}

// awaitAuditCondition waits for a condition of the audit.
func awaitAuditCondition(t *testing.T, n *harness.Node, want string) {
	t.Helper()
	awaitStatus(t, n, "the condition of the audit", func(s *api.Status) bool {
		return slices.ContainsFunc(
			s.Node.Conditions, func(c api.Condition) bool { return c.Kind == "audit" && strings.Contains(c.Message, want) },
		)
	})
}
