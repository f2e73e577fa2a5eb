package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that docs/robustness.md names is there, so that a claim cannot outlive its proof.
func TestNamedTestsExist(t *testing.T) {
	named := regexp.MustCompile("`([a-z/-]+): ((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(read(t, "docs/robustness.md"), -1)
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
			t.Errorf("docs/robustness.md names %s of %s, which is not there", m[2], m[1])
		}
	}
}

// Every invariant has its row.
func TestInvariantsAreListed(t *testing.T) {
	text := read(t, "docs/robustness.md")
	for _, i := range strings.Fields("I1 I2 I3 I4 I5 I6 I7 I8 I9") {
		if !strings.Contains(text, "\n| "+i+" | ") {
			t.Errorf("docs/robustness.md has no row for %s", i)
		}
	}
}
