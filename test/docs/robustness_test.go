package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that a page names exists.
func TestNamedTestsExist(t *testing.T) {
	var named [][]string
	for _, document := range []string{"docs/maintainers/robustness.md", "docs/maintainers/shown.md"} {
		some := regexp.MustCompile("`([a-z/-]+): ((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(read(t, document), -1)
		if len(some) < 15 {
			t.Fatalf("%s names only %d tests: the reading is broken", document, len(some))
		}
		named = append(named, some...)
	}
	if len(named) < 20 {
		t.Fatalf("only %d tests are named: the reading is broken", len(named))
	}
	for _, m := range named {
		files, err := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(b), "\nfunc "+m[2]+"(")
		}
		if !found {
			t.Errorf("a page names %s of %s, which does not exist", m[2], m[1])
		}
	}
}

// Every invariant has its row.
func TestInvariantsAreListed(t *testing.T) {
	text := read(t, "docs/maintainers/robustness.md")
	for _, i := range strings.Fields("I1 I2 I3 I4 I5 I6 I7 I8 I9") {
		if !strings.Contains(text, "\n| "+i+" | ") {
			t.Errorf("docs/maintainers/robustness.md has no row for %s", i)
		}
	}
}

// Every launcher says whether its row was observed or comes from documentation.
func TestEveryLauncherSaysHowItIsKnown(t *testing.T) {
	rows := 0
	for _, line := range strings.Split(read(t, "docs/access-by-launcher.md"), "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| launcher |") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 5 {
			t.Errorf("a row has %d cells, want 5: %s", len(cells), line)
			continue
		}
		if !regexp.MustCompile(`^(lab|here|documentation)\b`).MatchString(cells[4]) {
			t.Errorf("%s has the source %q: write lab, here or documentation", cells[0], cells[4])
		}
	}
	if rows < 15 {
		t.Errorf("only %d launchers: the reading is broken", rows)
	}
}
