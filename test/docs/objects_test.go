package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// section returns the table rows of a section of a document, each as its cells, without the head.
func section(t *testing.T, document, title string) (rows [][]string) {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, document), "\n## "+title+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", document, title)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "| ") {
			rows = append(rows, strings.Split(strings.Trim(line, "| "), " | "))
		}
	}
	return rows[min(1, len(rows)):]
}

// Each object that a user can end or grow says what of the daemon is in it, and a test shows it. TestNamedTestsExist finds the tests.
func TestObjectsOfUsers(t *testing.T) {
	const title = "What a user can end or grow"
	var objects []string
	does := map[string]string{}
	for _, row := range section(t, "docs/security.md", title) {
		if len(row) != 4 || slices.Contains(row, "") {
			t.Errorf("a row has not four cells: %v", row)
			continue
		}
		objects, does[row[0]] = append(objects, row[0]), row[1]
	}
	var shown []string
	for line := range strings.Lines(read(t, "docs/maintainers/shown.md")) {
		if rest, ok := strings.CutPrefix(line, "| "+title+" | "); ok {
			object, tests, _ := strings.Cut(rest, " | ")
			if !strings.Contains(tests, ": Test") {
				t.Errorf("no test shows what becomes of a %s", object)
			}
			shown = append(shown, object)
		}
	}
	if !slices.Equal(objects, shown) {
		t.Errorf("docs/security.md has %q, docs/maintainers/shown.md shows %q", objects, shown)
	}
	// The kinds of the code: of leases, and of requests that last.
	origins := regexp.MustCompile(`\tOrigin\w+ += "(\w+)"`).FindAllStringSubmatch(read(t, "api/wire.go"), -1)
	if len(origins) < 6 {
		t.Errorf("api/wire.go has only %d kinds of leases: the reading is broken", len(origins))
	}
	for _, o := range append(origins, []string{"", "keyed"}) {
		if !strings.Contains(does["lease"], o[1]) {
			t.Errorf("the row of a lease does not name the kind %q", o[1])
		}
	}
	lasting := 0
	for _, row := range section(t, "docs/security.md", "What one user may hold") {
		if len(row) != 5 || row[3] != "before it waits" || row[4] != "is refused" || strings.Contains(row[1], "POST") {
			continue
		}
		lasting++
		for _, w := range strings.Fields(row[0]) {
			if !strings.Contains(does["stream"], strings.TrimSuffix(w, "s")) {
				t.Errorf("the row of a stream does not name %q", row[0])
				break
			}
		}
	}
	if lasting < 3 {
		t.Errorf("only %d kinds of requests last: the reading is broken", lasting)
	}
}
