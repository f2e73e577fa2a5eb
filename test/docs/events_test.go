package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// kindsInCode are the kinds of conditions and events that the daemon's code names. A kind that is put together counts as its
// first part.
type kindsInCode struct{ conditions, events map[string]bool }

// readKinds reads the packages that publish events and set conditions.
func readKinds(t *testing.T) kindsInCode {
	t.Helper()
	var files []*ast.File
	for _, dir := range []string{"daemon", "lease"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			files = append(files, f)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	out, known := kindsInCode{map[string]bool{}, map[string]bool{}}, constants(files)
	for _, f := range files {
		out.add(f, known)
	}
	return out
}

// constants are the texts of constants and variables, by package and name.
func constants(files []*ast.File) map[string]string {
	out := map[string]string{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for i, name := range spec.Names {
					if i >= len(spec.Values) {
						break
					}
					if s, ok := literal(spec.Values[i]); ok {
						out[f.Name.Name+"."+name.Name] = s
					}
				}
			}
			return true
		})
	}
	return out
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}

func (k kindsInCode) add(f *ast.File, known map[string]string) {
	text := func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BinaryExpr:
			if s, ok := literal(e.X); ok {
				return s + "…"
			}
		case *ast.Ident:
			return known[f.Name.Name+"."+e.Name]
		case *ast.SelectorExpr:
			if pkg, ok := e.X.(*ast.Ident); ok {
				return known[pkg.Name+"."+e.Sel.Name]
			}
		case *ast.BasicLit:
			s, _ := literal(e)
			return s
		}
		return ""
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || len(n.Args) == 0 {
				break
			}
			kind := text(n.Args[0])
			on, _ := sel.X.(*ast.SelectorExpr)
			switch name := sel.Sel.Name; {
			case kind == "":
			case on != nil && on.Sel.Name == "Conditions" && slices.Contains([]string{"Set", "Put", "Replace", "ReplaceCovering", "Together"}, name):
				k.conditions[kind] = true
			case name == "Event" && strings.Contains(kind, "."): // of a lease
				k.events[kind] = true
			}
		case *ast.CompositeLit:
			name := ""
			switch typ := n.Type.(type) {
			case *ast.SelectorExpr:
				name = typ.Sel.Name
			case *ast.Ident:
				name = typ.Name
			}
			if name != "Event" && name != "Notice" {
				break
			}
			for _, e := range n.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				if id, ok := kv.Key.(*ast.Ident); !ok || id.Name != "Kind" {
					continue
				}
				if kind := text(kv.Value); kind != "" && kind != "alive" {
					k.events[kind] = true
				}
			}
		}
		return true
	})
}

// Every kind of condition and event that the code names has a row on the document, and the document has no other.
func TestEventsAndConditionsAreDocumented(t *testing.T) {
	text, code := read(t, "docs/events.md"), readKinds(t)
	for table, want := range map[string]map[string]bool{"conditions": code.conditions, "events": code.events} {
		_, rest, found := strings.Cut(text, "<!-- "+table+" -->")
		rows, _, ended := strings.Cut(rest, "<!-- end of "+table+" -->")
		if !found || !ended || len(want) < 20 {
			t.Fatalf("%s: no table, or only %d kinds in the code", table, len(want))
		}
		documented := map[string]bool{}
		for line := range strings.Lines(rows) {
			cells := strings.Split(line, " | ")
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
				documented[m[1]] = true
			}
		}
		for kind := range want {
			if !documented[kind] {
				t.Errorf("%s: %s is not on the document", table, kind)
			}
		}
		for kind := range documented {
			// Kinds that are put together, and those that a variable has.
			composed := slices.ContainsFunc(composedKinds, func(p string) bool { return strings.HasPrefix(kind, p) })
			if !want[kind] && !composed {
				t.Errorf("%s: no code names %s", table, kind)
			}
		}
	}
}

// composedKinds begin kinds that the code puts together, or keeps in a variable.
var composedKinds = []string{"gpu.", "memory.", "condition.", "tenant.", "mps.", "lease."}
