package docs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

func TestEveryErrorKindIsDocumented(t *testing.T) {
	text := read(t, "docs/api.md")
	for _, k := range api.Kinds() {
		if row := fmt.Sprintf("| `%s` | %d | %d |", k, k.Status(), k.ExitCode()); !strings.Contains(text, row) {
			t.Errorf("docs/api.md lacks the row %q", row)
		}
	}
	if n := len(regexp.MustCompile("(?m)^\\| `[a-z-]+` \\| [0-9]{3} \\|").FindAllString(text, -1)); n != len(api.Kinds()) {
		t.Errorf("docs/api.md has %d rows of kinds, there are %d kinds", n, len(api.Kinds()))
	}
}

// The routes are read from the daemon's table, which no other package may import.
var route = regexp.MustCompile(`\{\s*(get|put|post|remove),\s*"([^"]+)",\s*"[^"]+",\s*server\.(\w+),`)

func TestEveryRouteIsDocumented(t *testing.T) {
	text, found := read(t, "docs/api.md"), 0
	verbs := map[string]string{"get": "GET", "put": "PUT", "post": "POST", "remove": "DELETE"}
	for _, m := range route.FindAllStringSubmatch(read(t, "daemon/routes.go"), -1) {
		found++
		if row := fmt.Sprintf("| %s | `%s` | %s |", verbs[m[1]], m[2], words(m[3])); !strings.Contains(text, row) {
			t.Errorf("docs/api.md lacks the row %q", row)
		}
	}
	if found == 0 {
		t.Fatal("daemon/routes.go has no routes: the reading is broken")
	}
	if n := len(regexp.MustCompile(`(?m)^\| (GET|PUT|POST|DELETE) \|`).FindAllString(text, -1)); n != found {
		t.Errorf("docs/api.md has %d rows of routes, the daemon has %d routes", n, found)
	}
}

func TestExitCodesAreInTheReadme(t *testing.T) {
	text := read(t, "README.md")
	for _, code := range []int{
		api.ExitOK, api.ExitFailed, api.ExitUsage, api.ExitUnreachable, api.ExitDenied, api.ExitConflict, api.ExitDegraded,
		api.ExitInfeasible, api.ExitNeedsPermission, api.ExitChanges, api.ExitIncomplete, api.ExitSomeHosts,
	} {
		if !strings.Contains(text, fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("exit code %d has no row in README.md", code)
		}
	}
}

var camel = regexp.MustCompile(`([a-z])([A-Z])`)

// words is a Go name in words: "AdminOrObserver" is "admin or observer".
func words(name string) string { return strings.ToLower(camel.ReplaceAllString(name, "$1 $2")) }
