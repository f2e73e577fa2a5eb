package gpushare_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// closers are the packages that close and open places, by the kind of closure.
var closers = map[string][]string{
	"Maintenance":  {"daemon/maintenance"},
	"Held":         {"daemon/change", "daemon/state"}, // a change that fails, and what is recorded when it reaches the GPU
	"Unhealthy":    {"daemon/health"},
	"Cordoned":     {"daemon/cordon"},
	"Drained":      {"daemon/mps/control", "daemon/change"},                     // administrators, and a spec that ends MPS
	"HeldBack":     {"daemon/mps/fault", "daemon/mps/control", "daemon/change"}, // faults, 'mps resume', and a spec that ends MPS
	"UnknownLease": {"daemon/leases"},
	"Occupied":     {"daemon/escape"},
}

// shorthands are functions of package closing that change closures of one kind.
var shorthands = map[string]string{"CloseHeld": "Held", "SetHealth": "Unhealthy"}

// A place is closed and opened by the closers of its kind: another package that opens one, or a kind that no package closes, is a mistake.
func TestOnlyClosersCloseAndOpen(t *testing.T) {
	seen := map[string][]string{}
	err := filepath.WalkDir("daemon", func(file string, d fs.DirEntry, err error) error {
		dir := filepath.Dir(file)
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || dir == "daemon/closing" {
			return err
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if kind := changedKind(n); kind != "" && !slices.Contains(seen[kind], dir) {
				seen[kind] = append(seen[kind], dir)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for kind, dirs := range seen {
		for _, dir := range dirs {
			if !slices.Contains(closers[kind], dir) {
				t.Errorf("%s closes or opens places with closing.%s, which belongs to %s", dir, kind, strings.Join(closers[kind], " and "))
			}
		}
	}
	for kind, dirs := range closers {
		for _, dir := range dirs {
			if !slices.Contains(seen[kind], dir) {
				t.Errorf("%s changes no closure of the kind closing.%s any more: remove it from the table", dir, kind)
			}
		}
	}
}

// changedKind is the kind of closures that an expression changes: closing.Held.Open, closing.CloseHeld, or SetFound(closing.Occupied, …).
func changedKind(n ast.Node) string {
	switch x := n.(type) {
	case *ast.SelectorExpr:
		if kind := fromClosing(x.X); kind != "" && slices.Contains([]string{"Close", "Open", "OpenIf"}, x.Sel.Name) {
			return kind
		}
		return shorthands[fromClosing(x)]
	case *ast.CallExpr:
		if f, ok := x.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "SetFound" && len(x.Args) > 0 {
			return fromClosing(x.Args[0])
		}
	}
	return ""
}

// fromClosing is the name of what an expression takes from package closing; empty if that is nothing.
func fromClosing(x ast.Expr) string {
	s, ok := x.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if p, ok := s.X.(*ast.Ident); ok && p.Name == "closing" {
		return s.Sel.Name
	}
	return ""
}
