package golden

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// recorder is a test that keeps its failures.
type recorder struct {
	testing.TB
	said []string
}

var errFatal = errors.New("the test ended")

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(errFatal)
}

func compare(t *testing.T, file, want string) (said string) {
	t.Helper()
	r := &recorder{TB: t}
	defer func() {
		if v := recover(); v != nil && v != any(errFatal) {
			panic(v)
		}
		said = strings.Join(r.said, "\n")
	}()
	File(r, file, want)
	return ""
}

// A difference and a file that is missing name the command that writes the file, and change nothing. With -update it is written.
func TestFailureNamesTheCommand(t *testing.T) {
	const command = "'go test ./test/golden -update'"
	file := filepath.Join(t.TempDir(), "a.txt")
	if said := compare(t, file, "one\n"); !strings.Contains(said, command) {
		t.Errorf("the file is missing: %q", said)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
	*update = true
	said := compare(t, file, "one\n")
	*update = false
	if said != "" {
		t.Errorf("-update: %q", said)
	}
	if said := compare(t, file, "one\n"); said != "" {
		t.Errorf("the same text: %q", said)
	}
	if said := compare(
		t,
		file,
		"two\n",
	); !strings.Contains(said, command) || !strings.Contains(said, "one") ||
		!strings.Contains(said, "two") {
		t.Errorf("another text: %q", said)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "one\n" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// Every golden test uses this package: no other one has a flag that writes files, and no test writes a file of the tree.
func TestThereIsNoOtherHelper(t *testing.T) {
	users := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "build", "bin"}, d.Name()):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"), strings.HasPrefix(path, "../../test/golden/"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch name := called(call); {
			case name == "golden.File":
				users++
			case strings.HasPrefix(name, "flag.") && slices.ContainsFunc(call.Args, writes):
				t.Errorf("%s has a flag that writes golden files: test/golden has the one flag, and its failures name it", path)
			case name == "os.WriteFile" && intoTree(call.Args[0]):
				t.Errorf("%s writes a file of the tree: use test/golden, whose failures name -update", path)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if users < 5 {
		t.Errorf("%d calls of golden.File: the search is wrong", users)
	}
}

// called is the name of a function of another package.
func called(call *ast.CallExpr) string {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

func writes(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	return ok && slices.Contains([]string{`"update"`, `"golden"`, `"write"`, `"accept"`}, l.Value)
}

// intoTree reports whether an expression names testdata or a path out of the package.
func intoTree(e ast.Expr) (in bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && (strings.HasPrefix(l.Value, `"testdata`) || strings.HasPrefix(l.Value, `"../`)) {
			in = true
		}
		return true
	})
	return in
}
