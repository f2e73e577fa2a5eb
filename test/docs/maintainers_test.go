package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The pages for maintainers stand apart: the README has each of them with what developers read, and none among those for users, and no
// page for users sends its reader there but for figures.
func TestDocumentsForMaintainersStandApart(t *testing.T) {
	readme, develop := read(t, "README.md"), ""
	for line := range strings.Lines(readme) {
		_, after, found := strings.Cut(line, "Develop:")
		if found {
			develop = after
		} else if (strings.HasPrefix(line, "Use:") || strings.HasPrefix(line, "Operate:")) && strings.Contains(line, "docs/maintainers/") {
			t.Errorf("README.md has a page for maintainers among those for users: %s", line)
		}
	}
	n := 0
	for _, f := range documentFiles(t) {
		name := strings.TrimPrefix(f, root+"/")
		switch filepath.Base(name) {
		case "robustness.md", "hardware.md", "shown.md", "engines.md":
			if filepath.Dir(name) != "docs/maintainers" {
				t.Errorf("%s is for maintainers: it belongs in docs/maintainers", name)
			}
		}
		if filepath.Dir(name) == "docs/maintainers" {
			n++
			if !strings.Contains(develop, "("+name+")") {
				t.Errorf("README.md has no link to %s after Develop:", name)
			}
		}
	}
	if n < 2 {
		t.Errorf("there are %d pages for maintainers", n)
	}
}

// Users read what holds. Which test shows it is for maintainers: docs/maintainers/shown.md.
func TestDocumentsForUsersNameNoTests(t *testing.T) {
	comment := regexp.MustCompile(`(?s)<!--.*?-->`)
	test := regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w*`)
	n := 0
	for _, f := range documentFiles(t) {
		name := strings.TrimPrefix(f, root+"/")
		if filepath.Dir(name) == "docs/maintainers" {
			continue
		}
		n++
		for _, found := range test.FindAllString(comment.ReplaceAllString(read(t, name), ""), -1) {
			t.Errorf("%s names %s: say what holds, and name the test in docs/maintainers/shown.md", name, found)
		}
	}
	if n < 20 {
		t.Errorf("only %d pages were read", n)
	}
}
