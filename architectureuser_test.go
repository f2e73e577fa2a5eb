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

// askForUser are the files of the daemon that ask which user runs it, and why they are not given.
var askForUser = map[string]string{
	"daemon/build.go":     "the wiring, which tells the others",
	"daemon/stop/rule.go": "it compares a process with this one, both as the kernel has them",
}

// The daemon decides about users by the uid that it is given. One that is asked for is the developer's in a test, and then a member of the
// test who has it by chance is an administrator.
func TestTheDaemonIsToldItsUser(t *testing.T) {
	asks := map[string]bool{}
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
				!slices.Contains([]string{"Getuid", "Geteuid", "Getresuid", "Getgid", "Getegid", "Getresgid", "Getgroups", "Current"}, name) {
				return true
			}
			if asks[file] = true; askForUser[file] == "" {
				t.Errorf("%s calls %s.%s: take the uid as a value, which daemon/build.go gives, or say in askForUser why not", file, of.Name, name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for file := range askForUser {
		if !asks[file] {
			t.Errorf("%s asks for no user any more: remove it from askForUser", file)
		}
	}
}
