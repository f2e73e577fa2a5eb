//go:build vm

package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpushare/gpushare/test/machine"
)

// walker builds the program that walks through the pages, and attacker that of hostile processes.
func walker(t *testing.T) string {
	t.Helper()
	return machine.Program(t, "github.com/gpushare/gpushare/test/documents/walk")
}

func attacker(t *testing.T) string {
	t.Helper()
	return machine.Program(t, "github.com/gpushare/gpushare/test/vm/attacker")
}

// tests builds the tests of packages that are to run on a real service manager.
func tests(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(
		t.Context(), "go", "test", "-c", "-o", filepath.Join(dir, "systemd.test"), "github.com/gpushare/gpushare/systemd",
	)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the tests of package systemd: %v\n%s", err, out)
	}
	return dir
}
