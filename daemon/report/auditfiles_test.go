package report

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/ledger"
)

// openAudit opens the audit of a reporter in a directory.
func openAudit(t *testing.T, r *Reporter, dir, boot string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(
		filepath.Join(dir, "audit"), "audit",
		ledger.Options{Anchor: filepath.Join(dir, ledger.AuditAnchor), Boot: boot, OnDamage: r.AuditDamaged},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(t.Context()) })
	r.Audits = l
	return l
}

// appendLines appends lines and returns when they are written.
func appendLines(t *testing.T, l *ledger.Ledger, n int, flush func() error) {
	t.Helper()
	for range n {
		if err := l.Append(Entry{What: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := flush(); err != nil {
		t.Fatal(err)
	}
}

// What a loss of power took is a line of the audit, and no condition for as long as the files are there. What was removed is one, also
// behind it.
func TestALossOfPowerIsNoLastingCondition(t *testing.T) {
	dir := t.TempDir()
	file, anchor := filepath.Join(dir, "audit", "audit-000001.log"), filepath.Join(dir, ledger.AuditAnchor)
	newReporter := func() *Reporter { return NewReporter(slog.New(slog.DiscardHandler), time.Now) }
	l := openAudit(t, newReporter(), dir, "boot-1")
	sync := func() error { _, err := l.Sync(t.Context()); return err }
	flush := func() error { _, err := l.Flush(t.Context()); return err }
	appendLines(t, l, 3, sync)
	synced, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	appendLines(t, l, 2, flush)
	before, err := os.ReadFile(anchor)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{file: synced, anchor: before} { // as without power
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	r := newReporter()
	l = openAudit(t, r, dir, "boot-2")
	r.reportDamage()
	if err := sync(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || !bytes.Contains(b, []byte("may have been lost with the power of the host")) {
		t.Errorf("the audit has no line about it: %s, %v", b, err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	r = newReporter() // The next start has nothing new to say.
	l = openAudit(t, r, dir, "boot-2")
	appendLines(t, l, 2, sync)
	r.reportDamage()
	r.verifyOften(t.Context())
	if v, err := l.Verify(t.Context()); err != nil || len(v.Findings) != 1 || !v.Findings[0].Crash || len(r.Conditions.List()) != 0 {
		t.Errorf("the findings are %+v, %v, and the conditions %+v", v.Findings, err, r.Conditions.List())
	}

	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	lines[4][20] ^= 1 // the first line after the place
	if err := os.WriteFile(file, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	r.verifyOften(t.Context())
	if list := r.Conditions.List(); len(list) != 1 || !strings.Contains(list[0].Message, "it was changed") ||
		strings.Contains(list[0].Message, "places") {
		t.Errorf("the conditions are %+v", list)
	}
}
