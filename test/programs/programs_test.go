package programs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gpushare/gpushare/test/programs"
)

// What was written can be executed at once, although other programs are started all the time.
func TestWrittenProgramsRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exec.CommandContext(t.Context(), "true").Run(); err != nil {
					t.Errorf("another program: %v", err)
					return
				}
			}
		})
	}
	defer others.Wait()
	defer close(stop)
	for i := range 300 {
		file := filepath.Join(dir, strconv.Itoa(i))
		if err := programs.Write(file, "#!/bin/sh\nexit 0\n"); err != nil {
			t.Fatal(err)
		}
		if err := exec.CommandContext(t.Context(), file).Run(); err != nil {
			t.Fatalf("program %d: %v", i, err)
		}
	}
}

// executable reports whether a call writes a file that may be executed, without Write.
func executable(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "WriteFile" || len(call.Args) != 3 {
		return false
	}
	mode, ok := call.Args[2].(*ast.BasicLit)
	if !ok {
		return false
	}
	bits, err := strconv.ParseUint(mode.Value, 0, 32)
	return err == nil && bits&0o111 != 0
}

// Every test writes its programs with Write: those that do it by themselves fail once in a hundred runs.
func TestEveryTestWritesItsProgramsHere(t *testing.T) {
	t.Parallel()
	const root = "../.."
	found, files := 0, token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || file == filepath.Join(root, "build") || file == filepath.Join(root, "bin")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || file == filepath.Join(root, "test/programs/programs.go"):
			return nil
		}
		parsed, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Write" && len(call.Args) == 2 {
				if of, ok := f.X.(*ast.Ident); ok && of.Name == "programs" {
					found++
				}
			}
			if executable(call) {
				t.Errorf("%s: use programs.Write", strings.TrimPrefix(files.Position(call.Pos()).String(), root+"/"))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 10 {
		t.Errorf("%d programs are written by tests: the search is wrong", found)
	}
}
