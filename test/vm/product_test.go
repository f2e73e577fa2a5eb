//go:build vm

package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// bin is the directory of the built programs.
const bin = "../../bin"

// stage installs the product, as make install does, into a directory that the guest copies over its root.
func stage(t *testing.T) string {
	t.Helper()
	built(t, "gpushare", "gpushared", "gpushare-nvml", "gpushare-thaw", "gpushare-start")
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "../../packaging/install.sh", dir, "/usr", bin).CombinedOutput(); err != nil {
		t.Fatalf("cannot stage the product: %v\n%s", err, out)
	}
	return dir
}

// simulator collects the programs and libraries of the virtual node.
func simulator(t *testing.T) string {
	t.Helper()
	built(t, "gpusim", "gpusim-burn")
	dir := t.TempDir()
	libraries, err := filepath.Glob(filepath.Join(bin, "libnvidia-ml.so.*"))
	if err != nil || len(libraries) == 0 {
		t.Skipf("the virtual driver is missing in %s (%v): make build", bin, err)
	}
	for _, f := range append(libraries, filepath.Join(bin, "gpusim"), filepath.Join(bin, "gpusim-burn")) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func built(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			t.Skipf("%s was not built: make build", p)
		}
	}
}

// tests builds the tests of packages that are to run on a real service manager.
func tests(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", filepath.Join(dir, "systemd.test"), "github.com/gpushare/gpushare/systemd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the tests of package systemd: %v\n%s", err, out)
	}
	return dir
}

// next builds the daemon with another version, for an upgrade.
func next(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(dir, "gpushared"),
		"-ldflags", "-s -w -X github.com/gpushare/gpushare/internal/version.Version=lab-next", "github.com/gpushare/gpushare/cmd/gpushared")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the next version of the daemon: %v\n%s", err, out)
	}
	return dir
}
