package gpushare_test

import (
	"go/ast"
	"go/token"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// maxMethods is the most methods that an interface has: one that has more is an implementation's list, and not what its user needs.
const maxMethods = 5

// wide has the interfaces with more methods, and why.
var wide = map[string]string{
	"gpu.Driver":               "it is a port: each implementation has all of it, and the worker carries all of it across a process",
	"cgroup.Port":              "it is a port: each adapter has all of it, and the rest is cgroup.Abilities",
	"daemon/host.Driver":       "it is the client of the worker as the wiring has it: each part names what it needs of it",
	"daemon/host.Programs":     "it is two interfaces of leases, which one adapter fills",
	"daemon/mps/access.Scopes": "Freezer takes the place of a cgroup.Freezer, so it has all that users of one call",
}

// ports count as one method where they are embedded.
var ports = map[string]bool{"gpu.Driver": true, "cgroup.Port": true}

// methods counts the methods of interfaces, by the directory of the package and the name.
type methods struct {
	declared map[string]*ast.InterfaceType
	imports  map[string]map[string]string // by directory: the directory of a package of this module, by its name
}

// count counts the methods with those of embedded interfaces. An interface of another module counts as one method.
func (m methods) count(dir string, i *ast.InterfaceType) int {
	n := 0
	for _, f := range i.Methods.List {
		if len(f.Names) > 0 {
			n += len(f.Names)
			continue
		}
		at, name := dir, ""
		switch e := f.Type.(type) {
		case *ast.Ident:
			name = e.Name
		case *ast.SelectorExpr:
			if x, ok := e.X.(*ast.Ident); ok {
				at, name = m.imports[dir][x.Name], e.Sel.Name
			}
		default:
			continue // A union: a constraint.
		}
		if embedded := m.declared[at+"."+name]; embedded != nil && !ports[at+"."+name] {
			n += m.count(at, embedded)
		} else {
			n++
		}
	}
	return n
}

func TestInterfacesAreSmall(t *testing.T) {
	m := methods{map[string]*ast.InterfaceType{}, map[string]map[string]string{}}
	eachFile(t, func(file string, _ *token.FileSet, parsed *ast.File) {
		dir := path.Dir(filepath.ToSlash(file))
		if m.imports[dir] == nil {
			m.imports[dir] = map[string]string{}
		}
		for _, i := range parsed.Imports {
			if at, err := strconv.Unquote(i.Path.Value); err == nil && strings.HasPrefix(at, module+"/") {
				m.imports[dir][path.Base(at)] = strings.TrimPrefix(at, module+"/")
				if i.Name != nil {
					m.imports[dir][i.Name.Name] = strings.TrimPrefix(at, module+"/")
				}
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if i, ok := n.Type.(*ast.InterfaceType); ok {
					m.declared[dir+"."+n.Name.Name] = i
				}
			case *ast.Field: // An interface without a name, as in a struct.
				if i, ok := n.Type.(*ast.InterfaceType); ok && len(n.Names) > 0 {
					m.declared[dir+".(field) "+n.Names[0].Name] = i
				}
			}
			return true
		})
	})
	if len(m.declared) == 0 {
		t.Fatal("no interface was found: the reading is broken")
	}
	for name, i := range m.declared {
		dir := name[:strings.LastIndex(name, ".")]
		switch n := m.count(dir, i); {
		case n > maxMethods && wide[name] == "":
			t.Errorf(
				"%s has %d methods: declare what each user needs of it, at most %d, or write here why that is not possible",
				name,
				n,
				maxMethods,
			)
		case n <= maxMethods && wide[name] != "":
			t.Errorf("%s has %d methods: it needs no reason any more", name, n)
		}
	}
	for name := range wide {
		if m.declared[name] == nil {
			t.Errorf("%s has a reason for its methods, and does not exist", name)
		}
	}
}
