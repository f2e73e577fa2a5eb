package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// left are the tests of a package that 'make test' does not run, or not whole: those that call package enumeration, themselves or by
// functions of their package. Functions are known by their names alone, so a test may be among them that runs whole.
type left struct {
	long    []string // they take long
	sampled []string // a sample of their cases runs
}

func (l left) all() []string { return slices.Concat(l.long, l.sampled) }

// readLeft reads the tests of a package.
func readLeft(dir string, files []string) (left, error) {
	calls := map[string][]string{} // by function
	uses := map[string]bool{}      // functions that use a sample
	var out left
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return out, fmt.Errorf("cannot read a test: %w", err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			if isTest(fn) && isLong(fn.Body) {
				out.long = append(out.long, fn.Name.Name)
			}
			called, sampled := callsOf(fn.Body)
			calls[fn.Name.Name] = append(calls[fn.Name.Name], called...)
			uses[fn.Name.Name] = uses[fn.Name.Name] || sampled
		}
	}
	for more := true; more; {
		more = false
		for fn, called := range calls {
			if !uses[fn] && slices.ContainsFunc(called, func(c string) bool { return uses[c] }) {
				uses[fn], more = true, true
			}
		}
	}
	for fn := range uses {
		if uses[fn] && strings.HasPrefix(fn, "Test") && !slices.Contains(out.long, fn) {
			out.sampled = append(out.sampled, fn)
		}
	}
	slices.Sort(out.long)
	slices.Sort(out.sampled)
	return out, nil
}

// callsOf returns the names that a function calls, and whether it asks package enumeration for a sample.
func callsOf(body *ast.BlockStmt) (called []string, sampled bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch f := c.Fun.(type) {
		case *ast.Ident:
			called = append(called, f.Name)
		case *ast.SelectorExpr:
			if x, ok := f.X.(*ast.Ident); ok && x.Name == "enumeration" {
				sampled = sampled || f.Sel.Name != "Long"
			} else {
				called = append(called, f.Sel.Name)
			}
		}
		return true
	})
	return called, sampled
}

func isTest(fn *ast.FuncDecl) bool { return fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") }

// isLong reports whether the first statement is enumeration.Long.
func isLong(body *ast.BlockStmt) bool {
	if len(body.List) == 0 {
		return false
	}
	statement, ok := body.List[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := statement.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || called.Sel.Name != "Long" {
		return false
	}
	x, ok := called.X.(*ast.Ident)
	return ok && x.Name == "enumeration"
}
