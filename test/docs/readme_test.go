package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// read reads a document, by its path in the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The targets of links between pages exist.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, f := range append(documentFiles(t), filepath.Join(root, "README.md"), filepath.Join(root, "ARCHITECTURE.md")) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(f), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", f, m[1])
			}
		}
	}
}

// The install lines of the README enable every unit that the preset enables.
func TestInstallLinesEnableEveryUnit(t *testing.T) {
	enabled := regexp.MustCompile(`(?m)^\$ systemctl enable --now (.*)$`).FindStringSubmatch(read(t, "docs/install.md"))
	if enabled == nil {
		t.Fatal("docs/install.md has no line '$ systemctl enable --now …'")
	}
	units := strings.Fields(enabled[1])
	for i, u := range units {
		if !strings.Contains(u, ".") {
			units[i] = u + ".service"
		}
	}
	preset := regexp.MustCompile(`(?m)^enable (\S+)$`).FindAllStringSubmatch(read(t, "packaging/preset/90-gpushare.preset"), -1)
	if len(preset) < 4 {
		t.Fatalf("only %d units were found in the preset", len(preset))
	}
	for _, m := range preset {
		if !slices.Contains(units, m[1]) {
			t.Errorf("the preset enables %s, and the install lines of docs/install.md do not", m[1])
		}
	}
}

// A new reader reads the whole README: details belong in docs/.
func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(read(t, "README.md"), "\n"); n > 200 {
		t.Errorf("README.md has %d lines, at most 200: move details to docs/", n)
	}
}

// Who finds the project sees in a minute whether it is for them, what it looks like, and how to take part.
func TestReadmeAnswersTheFirstQuestions(t *testing.T) {
	readme := read(t, "README.md")
	_, section, found := strings.Cut(readme, "\n## Is it for me?\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if n := strings.Count(strings.TrimSpace(section), "\n") + 1; !found || n > 10 {
		t.Errorf("'Is it for me?' has %d lines, want 10 at most", n)
	}
	for _, other := range []string{"mig-parted", "Slurm", "HAMi", "device plug-in"} {
		if !strings.Contains(section, other) {
			t.Errorf("'Is it for me?' does not say when to take %s", other)
		}
	}
	for _, image := range []string{"docs/status.svg", "docs/top.svg"} {
		if !strings.Contains(readme, "("+image+")") {
			t.Errorf("README.md does not show %s", image)
		}
	}
	for file, says := range map[string]string{
		"CONTRIBUTING.md": "make quick", "SECURITY.md": "private", "CHANGELOG.md": "\n## " + number(t) + "\n",
	} {
		if !strings.Contains(readme, "("+file+")") {
			t.Errorf("README.md has no link to %s", file)
		}
		if !strings.Contains(read(t, file), says) {
			t.Errorf("%s does not have %q", file, says)
		}
	}
}

// number is the version that the packages have.
func number(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`const Number = "(v[0-9.]+)"`).FindStringSubmatch(read(t, "internal/version/version.go"))
	if m == nil {
		t.Fatal("the number of the version was not found")
	}
	return m[1]
}
