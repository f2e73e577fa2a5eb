package machine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// bin is the directory of the built programs.
const bin = "../../bin"

// Packages has gpushare.deb, and next.deb, a newer version whose daemon reports another one. Both systems install them.
func Packages(t *testing.T) string {
	t.Helper()
	built(
		t,
		"gpushare",
		"gpushare-cli",
		"gpushared",
		"gpushare-nvml",
		"gpushare-thaw",
		"gpushare-start",
		"gpushare-front",
		"gpushare-plot",
		"share",
	)
	dir, err := packagesOnce()
	if err != nil {
		t.Fatalf("cannot build the packages: %v", err)
	}
	return dir
}

var packagesOnce = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs(filepath.Join(Builds, "packages"))
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	now, err := filepath.Abs(bin)
	if err != nil {
		return "", err
	}
	programs, err := filepath.Glob(filepath.Join(now, "*"))
	if err != nil {
		return "", err
	}
	next := filepath.Join(dir, "next")
	if err := os.MkdirAll(next, 0o755); err != nil {
		return "", err
	}
	for _, p := range programs {
		if filepath.Base(p) != "gpushared" {
			if err := os.Symlink(p, filepath.Join(next, filepath.Base(p))); err != nil {
				return "", err
			}
		}
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(next, "gpushared"),
		"-ldflags", "-s -w -X github.com/gpushare/gpushare/internal/version.Version=lab-next", "github.com/gpushare/gpushare/cmd/gpushared")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	both := filepath.Join(dir, "both")
	for name, v := range map[string]struct{ version, bin string }{"gpushare.deb": {"v1.0", now}, "next.deb": {"v1.1", next}} {
		out := filepath.Join(dir, name+".d")
		if b, err := exec.Command("../../packaging/package.sh", v.version, v.bin, out).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w\n%s", err, b)
		}
		found, err := filepath.Glob(filepath.Join(out, "*.deb"))
		if err != nil {
			return "", err
		}
		if len(found) != 1 {
			return "", fmt.Errorf("package.sh wrote %q, not one deb", found)
		}
		if err := os.MkdirAll(both, 0o755); err != nil {
			return "", err
		}
		if err := os.Rename(found[0], filepath.Join(both, name)); err != nil {
			return "", err
		}
	}
	return both, nil
})

// Simulator collects the programs and libraries of the virtual node.
func Simulator(t *testing.T) string {
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
		if err := programs.Write(filepath.Join(dir, filepath.Base(f)), b); err != nil {
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

// Program builds a program of the tests into a directory of its own.
func Program(t *testing.T, pkg string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", dir, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build %s: %v\n%s", pkg, err, out)
	}
	return dir
}
