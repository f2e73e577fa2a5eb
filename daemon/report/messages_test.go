package report

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every message with an id is in the catalog that journalctl -x shows, in the page of administrators and in the log of some part
// of the daemon, and nothing else is there.
func TestMessagesAreInTheCatalog(t *testing.T) {
	read := func(path string) string {
		b, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ids := func(pattern, text string) (out []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			out = append(out, m[1])
		}
		slices.Sort(out)
		return out
	}
	code := read("daemon/report/messages.go")
	want := ids(`MessageID = "([0-9a-f]{32})"`, code)
	if n := len(slices.Compact(slices.Clone(want))); n == 0 || n != len(want) {
		t.Errorf("%d ids, and %d of them differ", len(want), n)
	}
	if got := ids(`(?m)^-- (\S+)$`, read("packaging/catalog/gpushare.catalog")); !slices.Equal(got, want) {
		t.Errorf("the catalog has %q, want %q", got, want)
	}
	if got := ids("(?m)^\\| `([0-9a-f]{32})` \\|", read("docs/events.md")); !slices.Equal(got, want) {
		t.Errorf("docs/events.md has %q, want %q", got, want)
	}
	var daemon strings.Builder
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			daemon.WriteString(read(filepath.Join("daemon", "report", path)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(Message\w+)\s+MessageID = `).FindAllStringSubmatch(code, -1) {
		if !regexp.MustCompile(`"message_id", (report\.)?` + m[1] + `\b`).MatchString(daemon.String()) {
			t.Errorf("nothing is logged with %s", m[1])
		}
	}
}
