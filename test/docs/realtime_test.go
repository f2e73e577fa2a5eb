package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// realtimeRow is a row of the table of HACKING.md: the test, its limit, what takes how long, and the margin.
var realtimeRow = regexp.MustCompile("(?m)^\\| `([a-z/-]+): (\\w+)` \\| ([0-9.]+) (s|ms)[^|]* \\| [^|]+ \\| ([0-9.]+) (s|ms)[^|]* \\|$")

// HACKING.md lists each test that fails if something takes longer in real time than a limit, with its margin. Such a test can fail on a
// host that is only slow.
func TestTestsThatWaitInRealTimeAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, m := range realtimeRow.FindAllStringSubmatch(read(t, "HACKING.md"), -1) {
		listed[m[1]+": "+m[2]] = true
	}
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "build", "bin"}, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		names, err := limited(path)
		for _, n := range names {
			found[filepath.ToSlash(rel)+": "+n] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 10 {
		t.Errorf("only %d tests are found: the search is wrong", len(found))
	}
	for name := range found {
		if !listed[name] {
			t.Errorf("HACKING.md has no row of %s, which fails if something takes longer than a limit", name)
		}
	}
	for _, m := range realtimeRow.FindAllStringSubmatch(read(t, "HACKING.md"), -1) {
		limit, err := time.ParseDuration(m[3] + m[4])
		margin, err2 := time.ParseDuration(m[5] + m[6])
		if err != nil || err2 != nil || margin > limit || margin < time.Second {
			t.Errorf("%s has a margin of %v of %v: want 1 s at least (%v, %v)", m[2], margin, limit, err, err2)
		}
	}
	for name := range listed {
		if !found[name] {
			t.Errorf("HACKING.md has a row of %s, which has no limit in real time", name)
		}
	}
}

// limited are the functions of a file that report a failure if a time that they measured is above a limit. Those in virtual time are
// not meant.
func limited(path string) (names []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := parser.ParseFile(token.NewFileSet(), path, b, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		text := ""
		if ok {
			text = string(b[fn.Pos()-f.FileStart : fn.End()-f.FileStart])
		}
		if !ok || fn.Body == nil || !readsClock(fn.Body) || strings.Contains(text, "synctest.") {
			continue
		}
		measured := map[string]bool{}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, r := range n.Rhs {
					if id, ok := n.Lhs[i].(*ast.Ident); ok && measures(r, measured) {
						measured[id.Name] = true
					}
				}
			case *ast.IfStmt:
				if init, ok := n.Init.(*ast.AssignStmt); ok {
					for i, r := range init.Rhs {
						if id, ok := init.Lhs[i].(*ast.Ident); ok && measures(r, measured) {
							measured[id.Name] = true
						}
					}
				}
				if above(n.Cond, measured) && fails(n.Body) && !slices.Contains(names, fn.Name.Name) {
					names = append(names, fn.Name.Name)
				}
			}
			return true
		})
	}
	return names, nil
}

// readsClock reports whether a function reads the clock of the host, not one of the test.
func readsClock(b *ast.BlockStmt) (reads bool) {
	ast.Inspect(b, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Now" {
			id, ok := s.X.(*ast.Ident)
			reads = reads || ok && id.Name == "time"
		}
		return true
	})
	return reads
}

// above reports whether a condition compares a measured time with a limit above it.
func above(e ast.Expr, measured map[string]bool) (is bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		b, ok := n.(*ast.BinaryExpr)
		if ok && (b.Op == token.GTR || b.Op == token.GEQ) && measures(b.X, measured) {
			if zero, ok := b.Y.(*ast.BasicLit); !ok || zero.Value != "0" {
				is = true
			}
		}
		return true
	})
	return is
}

// measures reports whether an expression is a time that passed: time.Since, Sub of two times, or a variable of one.
func measures(e ast.Expr, measured map[string]bool) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return measured[e.Name]
	case *ast.CallExpr:
		s, ok := e.Fun.(*ast.SelectorExpr)
		return ok &&
			(s.Sel.Name == "Since" || s.Sel.Name == "Sub" || s.Sel.Name == "longest" || s.Sel.Name == "Round" && measures(s.X, measured))
	}
	return false
}

// fails reports whether a block reports a failure.
func fails(b *ast.BlockStmt) (is bool) {
	ast.Inspect(b, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf"}, s.Sel.Name) {
			is = true
		}
		return true
	})
	return is
}
