//go:build tools

package tools

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/version"
)

// A release has the packages, the modules in the programs and their checksums. A second one of the same sources has the same bytes,
// whatever the time, the time zone, the language and the temporary directory. lintian finds nothing in its deb.
func TestRelease(t *testing.T) {
	t.Parallel()
	first, second := filepath.Join(t.TempDir(), "r"), filepath.Join(t.TempDir(), "r")
	output(t, nil, "packaging/release.sh", version.Number, "bin", first)
	t.Run("lintian", func(t *testing.T) { lintian(t, first) })
	output(t, []string{"TZ=Asia/Kolkata", "LANG=C", "TMPDIR=" + t.TempDir()}, "packaging/release.sh", version.Number, "bin", second)
	files, err := os.ReadDir(first)
	if err != nil || len(files) != 4 {
		t.Fatalf("it has %v: %v", files, err)
	}
	for _, f := range files {
		if !bytes.Equal(read(t, filepath.Join(first, f.Name())), read(t, filepath.Join(second, f.Name()))) {
			t.Errorf("two builds of %s differ", f.Name())
		}
	}
	number := strings.TrimPrefix(version.Number, "v")
	for _, name := range []string{"gpushare_" + number + "_", "gpushare-" + number + "-1."} {
		if !slices.ContainsFunc(files, func(f os.DirEntry) bool { return strings.HasPrefix(f.Name(), name) }) {
			t.Errorf("no package begins with %s", name)
		}
	}
	output(t, nil, "sh", "-c", "cd "+first+" && sha256sum --check --strict --quiet SHA256SUMS && test $(wc -l <SHA256SUMS) = 3")

	var sbom struct {
		Format   string `json:"bomFormat"`
		Metadata struct {
			Component struct{ Name, Version string }
		}
		Modules []struct{ Name, Version, Purl string } `json:"components"`
	}
	if err := json.Unmarshal(read(t, filepath.Join(first, "gpushare.cdx.json")), &sbom); err != nil {
		t.Fatal(err)
	}
	if c := sbom.Metadata.Component; sbom.Format != "CycloneDX" || c.Name != "github.com/gpushare/gpushare" || c.Version != version.Number {
		t.Errorf("it is %s of %+v", sbom.Format, c)
	}
	// Every module that is linked into a program of the packages is in it, with its version. The driver of Kubernetes is in none.
	linked := output(
		t,
		nil,
		"sh",
		"-c",
		"for p in bin/gpushare*; do test ! -f $p || test $p = bin/gpushare-kubelet || go version -m $p; done | awk '$1 == \"dep\" {print $2, $3}' | sort -u",
	)
	lines := strings.Split(strings.TrimSpace(linked), "\n")
	if len(lines) < 10 {
		t.Errorf("the programs have the modules %q", lines)
	}
	for _, line := range lines {
		name, number, _ := strings.Cut(line, " ")
		if !slices.ContainsFunc(
			sbom.Modules,
			func(m struct{ Name, Version, Purl string }) bool { return m.Name == name && m.Version == number },
		) {
			t.Errorf("%s is in a program and not in the list", line)
		}
	}
}

// lintian finds no error and no warning in the deb of a release, and each override of the package is needed and has its reason.
func lintian(t *testing.T, release string) {
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Skip("lintian is missing: apt-get install lintian")
	}
	deb, _ := packagesIn(t, release)
	cmd := exec.CommandContext(t.Context(), "lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", deb)
	if out, err := cmd.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("%v:\n%s", err, out)
	}
	// The worker is position independent, and binds each symbol of the vendor's library when it is first called.
	elf := output(t, nil, "readelf", "--wide", "--dynamic", "bin/gpushare-nvml")
	if !strings.Contains(elf, "PIE") || strings.Contains(elf, "NOW") {
		t.Errorf("the worker is linked so:\n%s", elf)
	}
	reason := false
	for line := range strings.Lines(string(read(t, "../../packaging/debian/lintian-overrides"))) {
		if !strings.HasPrefix(line, "#") && !reason {
			t.Errorf("no reason is before the override %q", line)
		}
		reason = reason || strings.HasPrefix(line, "#")
	}
}
