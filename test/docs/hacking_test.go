package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// step is a row of a walk of HACKING.md: the file, what is found in it, and the test that fails without the step.
var step = regexp.MustCompile("(?m)^\\| [^|]+ \\| (`[^|]+`) \\| `(.+?)` \\| `([a-z/-]+): (Test\\w+)` \\|$")

var inCode = regexp.MustCompile("`([^`]+)`")

// Each walk of HACKING.md leads to files and places that exist, and its steps name tests that exist.
func TestWalksLeadToFilesAndTests(t *testing.T) {
	text := read(t, "HACKING.md")
	for _, walk := range []struct {
		title string
		steps int
	}{{"Add a key to the spec", 7}, {"Add a metric", 4}, {"Add a condition", 2}, {"Add a route", 9}} {
		_, rest, found := strings.Cut(text, "\n## "+walk.title+"\n")
		rest, _, _ = strings.Cut(rest, "\n## ")
		steps := step.FindAllStringSubmatch(rest, -1)
		if !found || len(steps) != walk.steps || strings.Count(rest, "\n| ") != walk.steps+1 {
			t.Errorf("%s: %d steps are read, want %d", walk.title, len(steps), walk.steps)
		}
		for _, s := range steps {
			at, pkg, test := strings.ReplaceAll(s[2], `\|`, "|"), s[3], s[4]
			for i, m := range inCode.FindAllStringSubmatch(s[1], -1) {
				b, err := os.ReadFile(filepath.Join(root, m[1]))
				if err != nil || i == 0 && !strings.Contains(string(b), at) {
					t.Errorf("%s: %s has no %q: %v", walk.title, m[1], at, err)
				}
			}
			if !hasTest(t, pkg, test) {
				t.Errorf("%s: package %s has no test %s", walk.title, pkg, test)
			}
		}
	}
	for _, m := range regexp.MustCompile("`make ([a-z-]+)`").FindAllStringSubmatch(text, -1) {
		if !strings.Contains(read(t, "Makefile"), "\n"+m[1]+":") {
			t.Errorf("there is no 'make %s'", m[1])
		}
	}
}

func hasTest(t *testing.T, pkg, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+test+"(t *testing.T)") {
			return true
		}
	}
	return false
}
