package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/test/scenarios"
)

// The record of the limits of logins is removed while the daemon runs: it is written again, and a condition says so.
func TestRemovedRecordOfLoginLimitsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
		run := filepath.Join(w.dir, "run")
		if err := os.MkdirAll(run, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := store.RunDir(run).Write("login-limits.json", []byte(`{"2001": {"tenant": "red", "limit": 1073741824}}`)); err != nil {
			t.Fatal(err)
		}
		w.startDaemon()
		w.waitIdle(nil)
		if n, err := w.adopter.LimitedUsers(); n != 1 || err != nil {
			t.Fatalf("%d users have a limit, %v", n, err)
		}
		file := store.RunDir(run).Path("login-limits.json")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		w.Daemon.files.Check(t.Context())
		if _, err := os.Lstat(file); err != nil || !slices.Contains(w.conditionKinds(), report.LostFiles) {
			t.Errorf("it is not there again: %v; the conditions are %v", err, w.conditionKinds())
		}
	})
}
