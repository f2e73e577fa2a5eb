package gpushare_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxEntries is how often a walk of ARCHITECTURE.md may enter one file.
const maxEntries = 3

// walkTable is the first line of the table of a walk.
var walkTable = regexp.MustCompile(`(?m)^\| (a|an|the) ([a-z -]+): file \| functions \| what they do \|$`)

// walkRow is a row of a walk: a file, and functions in it.
type walkRow struct {
	file      string
	functions []string
}

// walksOf returns the walks of a page, by name.
func walksOf(text string) map[string][]walkRow {
	walks := map[string][]walkRow{}
	for _, at := range walkTable.FindAllStringSubmatchIndex(text, -1) {
		name := text[at[4]:at[5]]
		for line := range strings.Lines(strings.TrimPrefix(text[at[1]:], "\n")) {
			if !strings.HasPrefix(line, "|") {
				break
			}
			cells := strings.Split(line, "|")
			if strings.HasPrefix(cells[1], "---") {
				continue
			}
			r := walkRow{file: strings.Trim(cells[1], " `")}
			for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
				r.functions = append(r.functions, m[1])
			}
			walks[name] = append(walks[name], r)
		}
	}
	return walks
}

// function is one function of the packages of a walk.
type function struct {
	name, file string
	calls      []*types.Func // in the order in which they are executed, if no branch is left out
}

// walkReader reads functions as one does who follows a walk.
type walkReader struct {
	functions map[string]*function // by their full names
	listed    map[*function]bool   // in the walk
	read      map[*function]bool
	order     []*function    // of the walk, as they are met
	entries   map[string]int // of each file
}

// follow reads a function of the walk, and looks at each function that it calls: a file is entered where a function is read in it
// for the first time, from another file. What is called more than once is read once; going back to the caller is no entry.
func (r *walkReader) follow(f *function) {
	r.order = append(r.order, f)
	for _, c := range f.calls {
		g := r.functionOf(c)
		if g == nil || r.read[g] {
			continue
		}
		r.read[g] = true
		if g.file != f.file {
			r.entries[g.file]++
		}
		if r.listed[g] {
			r.follow(g)
		}
	}
}

// functionOf is the body of what is called. Behind an interface it is the function of the walk that has its name.
func (r *walkReader) functionOf(c *types.Func) *function {
	if f := r.functions[c.FullName()]; f != nil {
		return f
	}
	if at := c.Signature().Recv(); at != nil && types.IsInterface(at.Type()) {
		for f := range r.listed {
			if f.name == c.Name() {
				return f
			}
		}
	}
	return nil
}

// functionsOf type-checks the packages of these files and returns their functions.
func functionsOf(t *testing.T, files []string) map[string]*function {
	t.Helper()
	var dirs []string
	for _, f := range files {
		dirs = append(dirs, "./"+path.Dir(f))
	}
	slices.Sort(dirs)
	cmd := exec.CommandContext(
		t.Context(), "go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Export,GoFiles"}, slices.Compact(dirs)...)...,
	)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // As the programs are built: nothing is compiled for this.
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	type compiled struct {
		ImportPath, Export string
		GoFiles            []string
	}
	packages := map[string]compiled{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p compiled
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
	fset := token.NewFileSet()
	imported := importer.ForCompiler(fset, "gc", func(at string) (io.ReadCloser, error) { return os.Open(packages[at].Export) })
	functions := map[string]*function{}
	for _, dir := range slices.Compact(dirs) {
		at := path.Join(module, dir)
		var parsed []*ast.File
		for _, name := range packages[at].GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
		if _, err := (&types.Config{Importer: imported}).Check(at, fset, parsed, info); err != nil {
			t.Fatal(err)
		}
		for _, f := range parsed {
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
					defined := info.Defs[d.Name].(*types.Func)
					functions[defined.FullName()] = &function{
						name:  d.Name.Name,
						file:  filepath.ToSlash(fset.Position(d.Pos()).Filename),
						calls: callsIn(d.Body, info),
					}
				}
			}
		}
	}
	return functions
}

// callsIn lists the functions that a body names: those in the arguments of a call before the one that is called.
func callsIn(n ast.Node, info *types.Info) (calls []*types.Func) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			for _, a := range n.Args {
				calls = append(calls, callsIn(a, info)...)
			}
			calls = append(calls, callsIn(n.Fun, info)...)
			return false
		case *ast.Ident:
			if f, ok := info.Uses[n].(*types.Func); ok {
				calls = append(calls, f.Origin())
			}
		}
		return true
	})
	return calls
}

// problemsOf are what is wrong with a walk.
func problemsOf(functions map[string]*function, rows []walkRow) (problems []string) {
	r := walkReader{functions: functions, listed: map[*function]bool{}, read: map[*function]bool{}, entries: map[string]int{}}
	var want []*function
	for _, row := range rows {
		for _, name := range row.functions {
			var found []*function
			for _, f := range functions {
				if f.file == row.file && f.name == name {
					found = append(found, f)
				}
			}
			if len(found) != 1 {
				return []string{row.file + " has not exactly one function " + name}
			}
			want = append(want, found[0])
			r.listed[found[0]] = true
		}
	}
	r.read[want[0]], r.entries[want[0].file] = true, 1
	r.follow(want[0])
	names := func(list []*function) string {
		var b strings.Builder
		for _, f := range list {
			b.WriteString("\n\t" + f.file + " " + f.name)
		}
		return b.String()
	}
	if !slices.Equal(r.order, want) {
		problems = append(problems, "its functions call each other in another order:"+names(r.order)+"\nthe page says:"+names(want))
	}
	for _, file := range slices.Sorted(maps.Keys(r.entries)) {
		if n := r.entries[file]; n > maxEntries {
			problems = append(problems, fmt.Sprintf("it enters %s %d times: split the file by what is done there", file, n))
		}
	}
	return problems
}

// Who follows an apply, a lease, or a sample of memory meets no file more than three times, and the page has their way.
func TestWalksEnterNoFileOften(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	walks := walksOf(string(text))
	for _, name := range []string{"apply", "run of a lease", "lease", "sample of memory"} {
		if len(walks[name]) == 0 {
			t.Errorf("ARCHITECTURE.md has no walk of %q", name)
		}
	}
	var files []string
	for _, rows := range walks {
		for _, r := range rows {
			files = append(files, r.file)
		}
	}
	functions := functionsOf(t, files)
	for name, rows := range walks {
		for _, problem := range problemsOf(functions, rows) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}
