package gpushare_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// quoted is a name in backquotes, as the first column of a table of packages has them.
var quoted = regexp.MustCompile("`([^`]+)`")

// rowsOf returns the packages in the first column of the tables of ARCHITECTURE.md that have these columns, with how often they are
// there.
func rowsOf(t *testing.T, columns string) map[string]int {
	t.Helper()
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, table := range strings.Split(string(text), "\n"+columns+"\n")[1:] {
		for line := range strings.Lines(table) {
			if !strings.HasPrefix(line, "|") {
				break
			}
			first, _, _ := strings.Cut(line[1:], "|")
			for _, m := range quoted.FindAllStringSubmatch(first, -1) {
				rows[m[1]]++
			}
		}
	}
	if len(rows) == 0 {
		t.Fatalf("ARCHITECTURE.md has no table %q", columns)
	}
	return rows
}

// hasRow reports whether a package is in a table of ARCHITECTURE.md: what belongs to tests is in its last paragraph.
func hasRow(dir string) bool {
	return dir != "" && !testOnly[path.Base(dir)] && !strings.HasPrefix(dir, "test/") && !strings.HasPrefix(dir, "gpusim/mpsd/")
}

func TestEveryPackageHasARow(t *testing.T) {
	rows := rowsOf(t, "| package | responsibility |")
	for _, p := range list(t, "CGO_ENABLED=1") {
		dir := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if !hasRow(dir) {
			continue
		}
		if rows[dir] != 1 {
			t.Errorf("%s has %d rows in ARCHITECTURE.md: write one that says what it is for", dir, rows[dir])
		}
		delete(rows, dir)
	}
	for dir := range rows {
		t.Errorf("ARCHITECTURE.md has a row for %s, which does not exist", dir)
	}
}

// eachFile parses the files of the product: of its programs, and of what they import.
func eachFile(t *testing.T, use func(file string, fset *token.FileSet, parsed *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch dir := filepath.ToSlash(file); {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"test", "gpusim", "packaging", "bin", "build", "cmd/gpusim"}, dir) ||
			testOnly[d.Name()] || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil {
			use(file, fset, parsed)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ends is what the comment of a go statement says.
var ends = regexp.MustCompile(`(?i)\bends?\b`)

// A goroutine has an owner, and an end. Its package is in the table, and a go statement, whose goroutine no group waits for, says when
// it ends.
func TestEveryGoroutineHasAnOwner(t *testing.T) {
	rows := rowsOf(t, "| package | goroutine | owner | ends |")
	begun := map[string]bool{}
	eachFile(t, func(file string, fset *token.FileSet, parsed *ast.File) {
		said := map[int]bool{} // lines
		for _, group := range parsed.Comments {
			for _, c := range group.List {
				if ends.MatchString(c.Text) {
					said[fset.Position(c.Pos()).Line] = true
				}
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				begun[path.Dir(filepath.ToSlash(file))] = true
				if at := fset.Position(n.Pos()).Line; !said[at] && !said[at-1] {
					t.Errorf("%s:%d begins a goroutine that no group waits for: say in a comment there when it ends", file, at)
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Go" {
					begun[path.Dir(filepath.ToSlash(file))] = true
				}
			}
			return true
		})
	})
	for _, dir := range slices.Sorted(maps.Keys(begun)) {
		if rows[dir] == 0 {
			t.Errorf("%s begins goroutines and has no row in ARCHITECTURE.md: write who owns them and when they end", dir)
		}
	}
	for dir := range rows {
		if !begun[dir] {
			t.Errorf("ARCHITECTURE.md has a row for goroutines of %s, which begins none", dir)
		}
	}
}
