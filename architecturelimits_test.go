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

// Why a mutex has no level in the order of internal/locks.
const (
	otherProcess = "it is in another process, which has no lock of the daemon"
	underAll     = "every package may import this one, so it imports no order; nothing of another package is called while it is held"
	manyReaders  = "many read at a time, which internal/locks has no lock for; nothing of another package is called while it is held"
	adapter      = "it is of an adapter, so it comes after all of the daemon: it is taken below the locks of the daemon, and nothing of the daemon is called while it is held"
	ownOrder     = adapter + "; among those of the adapter it comes "
)

// unordered has the mutexes without a level in the order, and why.
var unordered = map[string]string{
	"cgroup.Attachments.mu":                ownOrder + "before that of its index",
	"cgroup.Freezer.mu":                    ownOrder + "after that of a scope",
	"cgroup.JobFreezer.mu":                 ownOrder + "alone: no other is taken while it is held",
	"cgroup.frozenJob.mu":                  ownOrder + "before those of the scopes that are its parts",
	"cgroup.OOMWatcher.mu":                 adapter,
	"cgroup.Processes.mu":                  adapter,
	"cgroup.ScopeIndex.mu":                 manyReaders,
	"cgroup.Tree.mu":                       ownOrder + "before those of its index, of the device programs and of the files that are kept open",
	"cgroup.cgroupWatcher.mu":              adapter,
	"cgroup.freezableScope.mu":             ownOrder + "before those of the freezer and of the files that are kept open",
	"cgroup.keptFiles.mu":                  adapter,
	"cgroup.lockReader.mu":                 adapter,
	"cgroup/device.cache.mu":               adapter,
	"cgroup/device.loadedPrograms.mu":      adapter,
	"cgroup/device.tags.mu":                adapter,
	"gpu/nvml.Driver.mu":                   otherProcess,
	"gpu/nvml.device.mu":                   otherProcess,
	"gpu/worker.Client.mu":                 ownOrder + "before those of its events and statistics",
	"gpu/worker.bounded.mu":                adapter,
	"gpu/worker.queue.mu":                  adapter,
	"gpu/worker.recorder.mu":               adapter,
	"gpu/worker.server.mu":                 otherProcess,
	"gpu/worker.server.writeMu":            otherProcess,
	"gpu/worker.session.writeMu":           adapter,
	"internal/boundedread.lostReads.mu":    underAll,
	"internal/front.link.mu":               otherProcess,
	"internal/kernel/descent.Record.mu":    adapter,
	"internal/kernel/exits.Listener.mu":    adapter,
	"internal/kernel/procfs.giveUps.mu":    underAll,
	"internal/kernel/procfs.statBatch.mu":  underAll,
	"internal/kernel/procfs.statReader.mu": underAll,
	"internal/loop.kernelTimers.mu":        underAll,
	"internal/names.Directory.mu":          manyReaders,
	"internal/top/screen.device.mu":        otherProcess,
	"systemd.Adapter.configsMu":            adapter,
	"systemd.Adapter.mu":                   ownOrder + "before that of the connection",
	"systemd.followers.mu":                 adapter,
	"systemd.supervisor.mu":                adapter,
}

// A lock has a level in the one order, or the table says why not.
func TestLocksAreInTheOrder(t *testing.T) {
	found := map[string]bool{}
	eachFile(t, func(file string, fset *token.FileSet, parsed *ast.File) {
		dir := path.Dir(filepath.ToSlash(file))
		if dir == "internal/locks" {
			return
		}
		for _, d := range parsed.Decls {
			owner := "" // the type, function or variable
			switch d := d.(type) {
			case *ast.FuncDecl:
				owner = d.Name.Name
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						mutexes(s, dir+"."+s.Name.Name, found)
					case *ast.ValueSpec:
						mutexes(s, dir+"."+s.Names[0].Name, found)
					}
				}
				continue
			}
			mutexes(d, dir+"."+owner, found)
		}
	})
	for name := range found {
		if unordered[name] == "" {
			t.Errorf("%s is a mutex without a level: use locks.Mutex, or write here why it has none", name)
		}
	}
	for name := range unordered {
		if !found[name] {
			t.Errorf("%s has a reason for its place, and is no mutex of package sync", name)
		}
	}
}

// mutexes adds the mutexes of package sync that a declaration has.
func mutexes(in ast.Node, owner string, found map[string]bool) {
	isMutex := func(e ast.Expr) bool {
		s, ok := e.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		x, ok := s.X.(*ast.Ident)
		return ok && x.Name == "sync" && (s.Sel.Name == "Mutex" || s.Sel.Name == "RWMutex")
	}
	ast.Inspect(in, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if isMutex(n.Type) {
				name := owner
				for _, id := range n.Names {
					name = owner + "." + id.Name
				}
				found[name] = true
				return false
			}
		case *ast.SelectorExpr:
			if isMutex(n) {
				found[owner] = true
			}
		}
		return true
	})
}
