package devicepolicy

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
)

// The files of an engine's claims are kept, whatever a tenant is called. Of those of gpushare only the ones that it knows are.
func TestFilesOfClaimsAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	claim := api.ClaimFilePrefix + "6f3c.json"
	for name, kept := range map[string]bool{
		claim:                        true,
		"nvidia.yaml":                true,
		CdiPrefix + "claim.dev.json": false, // of a grant of a tenant that is called claim
		CdiPrefix + "old-3kq6.json":  false,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		pol := &Policy{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), CDIDir: dir}
		if err := pol.SyncCDILocked(nil); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != kept {
			t.Errorf("%s is kept: %v, want %v: %v", name, err == nil, kept, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, claim)); err != nil {
		t.Error(err)
	}
}
