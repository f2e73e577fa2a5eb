package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
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
func TestEveryRouteIsDocumented(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), root+"/daemon/routes.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	text, found := read(t, "docs/api.md"), 0
	ast.Inspect(f, func(n ast.Node) bool {
		c, ok := n.(*ast.CompositeLit)
		if !ok || c.Type != nil {
			return true
		}
		field := map[string]ast.Expr{}
		for _, e := range c.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				field[fmt.Sprint(kv.Key)] = kv.Value
			}
		}
		method, isMethod := field["Method"].(*ast.SelectorExpr)
		pattern, isPattern := field["Pattern"].(*ast.BasicLit)
		who, isWho := field["Access"].(*ast.SelectorExpr)
		if !isMethod || !isPattern || !isWho {
			return true
		}
		path, err := strconv.Unquote(pattern.Value)
		if err != nil {
			t.Fatal(err)
		}
		found++
		verb := strings.ToUpper(strings.TrimPrefix(method.Sel.Name, "Method"))
		if row := fmt.Sprintf("| %s | `%s` | %s |", verb, path, words(who.Sel.Name)); !strings.Contains(text, row) {
			t.Errorf("docs/api.md lacks the row %q", row)
		}
		return false
	})
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
		api.ExitInfeasible, api.ExitChanges, api.ExitIncomplete,
	} {
		if !strings.Contains(text, fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("exit code %d has no row in README.md", code)
		}
	}
}

var camel = regexp.MustCompile(`([a-z])([A-Z])`)

// words is a Go name in words: "AdminOrObserver" is "admin or observer".
func words(name string) string { return strings.ToLower(camel.ReplaceAllString(name, "$1 $2")) }
