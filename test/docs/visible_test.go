package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the package puts on a host, and what the daemon adds while it runs, is in the list of what other programs see.
func TestWhatTheHostSeesIsListed(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "<!-- visible -->")
	table, _, ok := strings.Cut(after, "<!-- end of visible -->")
	if !ok {
		t.Fatal("docs/install.md has no list of what the host sees")
	}
	names := map[string]string{}
	for _, dir := range []string{"systemd", "apparmor", "generator"} {
		entries, err := os.ReadDir(filepath.Join(root, "packaging", dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.IsDir() {
				names[e.Name()] = "packaging/" + dir
			}
		}
	}
	for file, expr := range map[string]string{
		"packaging/sysusers.d/gpushare.conf":    `(?m)^[ugm] +(\S+)`,
		"packaging/tmpfiles.d/gpushare.conf":    `(?m)^[a-zA-Z] +(\S+)`,
		"internal/descent/programs.go":          `attach\("(gpushare_\w+)"`,
		"internal/descent/record.go":            `attach\("(gpushare_\w+)"`,
		"systemd/policy.go":                     `"(/?[\w/.-]*gpushare[\w-]*\.conf)"`,
		"packaging/systemd/gpushared.socket":    `(?m)^ListenStream=(\S+)`,
		"packaging/systemd/gpushared.service":   `(?m)^ReadWritePaths=-(/sys\S+)`,
		"packaging/apparmor/gpushared": `(?m)^  (/(?:var/lib|run)/\w+)/\{`,
	} {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(string(b), -1) {
			names[m[1]] = file
		}
	}
	if len(names) < 20 {
		t.Errorf("only %d names were found: %v", len(names), names)
	}
	for name, from := range names {
		if strings.HasSuffix(name, ".mount") {
			t.Errorf("%s: every program of the host sees a mount, and Slurm does not start next to one of cgroups", name)
		}
		if !strings.Contains(table, name) {
			t.Errorf("%s of %s is not in the list of docs/install.md of what the host sees", name, from)
		}
	}
}
