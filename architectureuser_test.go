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

// readOwnUser are the files of the daemon that read which user runs it, and why that is not given to them.
var readOwnUser = map[string]string{
	"daemon/build.go":     "the wiring, which gives it to the others",
	"daemon/stop/rule.go": "it compares a process with this one, both as the kernel has them",
}

// The daemon decides about users by the uid that is given to it as its own. One that it reads is the developer's in a test, and then a
// member in the test who has it by chance is an administrator.
func TestOwnUserIsGiven(t *testing.T) {
	reads := map[string]bool{}
	err := filepath.WalkDir("daemon", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := s.X.(*ast.Ident)
			name := s.Sel.Name
			if of == nil || !slices.Contains([]string{"os", "syscall", "unix"}, of.Name) && of.Name+"."+name != "user.Current" ||
				!slices.Contains(
					[]string{"Getuid", "Geteuid", "Getresuid", "Getgid", "Getegid", "Getresgid", "Getgroups", "Current"},
					name,
				) {
				return true
			}
			if reads[file] = true; readOwnUser[file] == "" {
				t.Errorf(
					"%s calls %s.%s: take the uid as a value, which daemon/build.go gives, or say in readOwnUser why not",
					file,
					of.Name,
					name,
				)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for file := range readOwnUser {
		if !reads[file] {
			t.Errorf("%s reads no user any more: remove it from readOwnUser", file)
		}
	}
}
