package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// The suffixes distinguish slices, scopes and the kernel's files.
const (
	sliceSuffix = ".slice"
	scopeSuffix = ".scope"
	inner       = "run"        // the inner cgroup: contains a scope's processes and is frozen
	supervising = "supervisor" // the cgroup of a program's supervisor: never frozen, and not what keeps a scope
)

// TreeOptions are for NewTree. The zero value is for a usual host.
type TreeOptions struct {
	Mount   string // of the cgroup v2 hierarchy; found when empty
	Subtree string // the name of the directory below its root; "gpushare" when empty
}

// Tree is the adapter for hosts without a service manager: a subtree of a cgroup v2 hierarchy that gpushare manages. Slices
// are nested directories. A scope is a directory with an inner one that contains the processes, and one next to it for the
// supervisor of a program. All state is read back from the kernel, so that a new Tree on the same subtree continues the work
// of the previous one.
//
// It needs write permission in the hierarchy. It does not support cgroup v1.
type Tree struct {
	InnerFreezer

	h     Hierarchy
	top   string // the subtree's path in the hierarchy
	info  Info
	index ScopeIndex

	// mu guards the structure of the subtree: it is taken to create and remove directories and to write limits.
	mu sync.Mutex
}

var _ Port = (*Tree)(nil)

// NewTree creates the subtree if it is missing, and registers the scopes in it. ErrNotSupported when there is no cgroup v2
// hierarchy, a permission error when it is not writable.
func NewTree(opt TreeOptions) (*Tree, error) {
	h := Hierarchy{Mount: opt.Mount}
	if h.Mount == "" {
		var err error
		if h, err = FindHierarchy(); err != nil {
			return nil, err
		}
	}
	name := opt.Subtree
	if name == "" {
		name = "gpushare"
	}
	if !goodName(name) {
		return nil, fmt.Errorf("cannot create a cgroup subtree %q: use letters, digits, '.', '_' and '-'", name)
	}
	t := &Tree{h: h, top: "/" + name}
	t.InnerFreezer = NewInnerFreezer(h.Mount, t.Leaf)
	if err := mkdir(h.Dir(t.top)); err != nil {
		return nil, fmt.Errorf("cannot create the cgroup subtree %s: %w", h.Dir(t.top), err)
	}
	limits, err := t.enableAll()
	if err != nil {
		return nil, err
	}
	_, freezerErr := t.freezer.Frozen(t.top)
	t.info = Info{
		Adapter: "cgroupfs",
		Detail:  h.Dir(t.top),
		Slices:  true,
		Driver:  DriverCgroupfs,
		Freeze:  freezerErr == nil,
		Limits:  limits,
	}
	if err := device.Probe(h.Dir(t.top)); err != nil {
		t.info.NoDevices = err.Error()
	} else {
		t.info.Devices = true
	}
	return t, t.sweep()
}

// Info returns what is enforced here.
func (t *Tree) Info() Info {
	i := t.info
	i.Limits = slices.Clone(i.Limits)
	return i
}

// Abilities are those of a host without a service manager.
func (t *Tree) Abilities() Abilities {
	a := Abilities{
		Hierarchy: new(t.h),
		PIDIndex:  t.PIDIndex,
		OwnScope:  func(name string) bool { return strings.HasSuffix(name, scopeSuffix) },
	}
	if t.info.Devices {
		a.ScopeDevices = t
	}
	return a
}

// Hierarchy is the hierarchy that contains the tree, for reading statistics.
func (t *Tree) Hierarchy() Hierarchy { return t.h }

// Top is the path of the subtree in the hierarchy.
func (t *Tree) Top() string { return t.top }

// SetSlice creates the slice or changes it to exactly s.
func (t *Tree) SetSlice(ctx context.Context, s Slice) (bool, error) {
	if err := s.Name.Check(); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	wrote, err := t.makeSliceLocked(s.Name)
	if err != nil {
		return wrote, err
	}
	cg := t.slicePath(s.Name)
	is, err := t.limits(cg)
	if err != nil {
		return wrote, fmt.Errorf("cannot read slice %s back: %w", s.Name, err)
	}
	for _, w := range limitWrites(is, s.Limits, t.info.Limits) {
		wrote = true
		if err := writeFile(filepath.Join(t.h.Dir(cg), w.file), w.value); err != nil {
			return wrote, fmt.Errorf("cannot set %s of slice %s to %s: %w", w.file, s.Name, strings.TrimSpace(w.value), err)
		}
	}
	changed, err := t.setDeviceRules(cg, s.Closed, s.Devices)
	if err != nil {
		return wrote || changed, fmt.Errorf("cannot set the device rules of slice %s: %w", s.Name, err)
	}
	return wrote || changed, nil
}

// Slices reads back every slice of the subtree.
func (t *Tree) Slices(ctx context.Context) ([]SliceState, error) {
	var states []SliceState
	err := t.walk(ctx, func(cg string, name SliceName, scope string) error {
		if scope != "" {
			return nil
		}
		st, err := t.readSlice(cg, name)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		states = append(states, st)
		return nil
	})
	return states, err
}

// Slice reads one slice back.
func (t *Tree) Slice(ctx context.Context, name SliceName) (SliceState, error) {
	if err := name.Check(); err != nil {
		return SliceState{}, err
	}
	if err := ctx.Err(); err != nil {
		return SliceState{}, err
	}
	return t.readSlice(t.slicePath(name), name)
}

func (t *Tree) readSlice(cg string, name SliceName) (SliceState, error) {
	l, err := t.limits(cg)
	if err != nil {
		return SliceState{}, fmt.Errorf("cannot read slice %s back: %w", name, err)
	}
	st := SliceState{Name: name, Path: cg, Limits: l}
	if st.Closed, st.Devices, err = t.deviceRules(cg); err != nil {
		return SliceState{}, fmt.Errorf("cannot read the device rules of slice %s back: %w", name, err)
	}
	return st, nil
}

// RemoveSlice removes a slice that contains no process.
func (t *Tree) RemoveSlice(ctx context.Context, name SliceName) error {
	if err := name.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	cg := t.slicePath(name)
	ps, err := t.h.Processes(cg)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot remove slice %s: %w", name, err)
	}
	if len(ps) > 0 {
		return fmt.Errorf("cannot remove slice %s: %w", name, inUse(ps))
	}
	if err := t.h.Remove(cg); err != nil {
		return fmt.Errorf("cannot remove slice %s: %w", name, err)
	}
	for _, id := range t.index.IDs() {
		if p, _ := t.index.Path(id); Below(p, cg) {
			t.forget(id)
		}
	}
	return nil
}

// StartScope creates the scope and moves the process into its inner cgroup.
func (t *Tree) StartScope(ctx context.Context, s Scope) (ScopeState, error) {
	if err := checkScope(s); err != nil {
		return ScopeState{}, err
	}
	if err := ctx.Err(); err != nil {
		return ScopeState{}, err
	}
	if !procfs.Alive(s.Process.PID, s.Process.Start) {
		return ScopeState{}, fmt.Errorf("cannot start scope %s: pid %d: %w", s.ID, s.Process.PID, procfs.ErrNoProcess)
	}
	scope := path.Join(t.slicePath(s.Slice), s.ID+scopeSuffix)
	again, err := t.placeInScope(s, scope)
	if errors.Is(err, procfs.ErrNoProcess) && !again {
		// It may have been moved, and have forked, before it exited. The lock is released: a kill can take long.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err = errors.Join(err, t.h.Kill(cleanup, scope), t.h.Remove(scope))
	}
	if err != nil {
		return ScopeState{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	t.register(s.ID, scope)
	return t.scopeState(s.ID, scope), nil
}

// placeInScope creates the scope with the process. again: the process was in it already.
func (t *Tree) placeInScope(s Scope, scope string) (again bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.makeSliceLocked(s.Slice); err != nil {
		return false, err
	}
	if ps, err := t.h.Processes(path.Join(scope, inner)); err == nil && len(ps) > 0 && !slices.Contains(ps, s.Process) {
		return false, fmt.Errorf("it exists already: %w", inUse(ps))
	} else if err == nil {
		again = len(ps) > 0
	}
	run, undo, err := t.makeScopeLocked(s, scope)
	if err != nil {
		return again, err
	}
	if err := t.h.Place(s.Process, run); err != nil {
		undo()
		return again, err
	}
	return again, nil
}

// scopeState is a scope as read back.
func (t *Tree) scopeState(id, scope string) ScopeState {
	return ScopeState{ID: id, Path: path.Join(scope, inner), MemoryNodes: t.h.MemoryNodes(scope)}
}

// bindMemory restricts the scope's memory to its NUMA nodes, where that is enforced.
func (t *Tree) bindMemory(s Scope, scope string) error {
	if s.MemoryNodes == "" || !slices.Contains(t.info.Limits, "cpuset") {
		return nil
	}
	if err := writeFile(filepath.Join(t.h.Dir(t.slicePath(s.Slice)), "cgroup.subtree_control"), "+cpuset"); err != nil {
		return err
	}
	return writeFile(filepath.Join(t.h.Dir(scope), "cpuset.mems"), s.MemoryNodes)
}

// makeScopeLocked creates the directories of a scope with their device rules, without a process. mu is held.
func (t *Tree) makeScopeLocked(s Scope, scope string) (run string, undo func(), err error) {
	run = path.Join(scope, inner)
	undo = func() { _ = t.h.Remove(scope) } // the next NewTree removes what remains
	for _, cg := range []string{scope, run} {
		if err := mkdir(t.h.Dir(cg)); err != nil {
			undo()
			return "", nil, err
		}
	}
	if err := t.h.SetOOMGroup(scope); err != nil {
		undo()
		return "", nil, err
	}
	if err := t.bindMemory(s, scope); err != nil {
		undo()
		return "", nil, fmt.Errorf("cannot bind its memory to NUMA nodes %s: %w", s.MemoryNodes, err)
	}
	if _, err := t.setDeviceRules(scope, s.Closed, s.Devices); err != nil {
		undo()
		return "", nil, fmt.Errorf("cannot set its device rules: %w", err)
	}
	return run, undo, nil
}

// Recover registers a scope of a previous run.
func (t *Tree) Recover(ctx context.Context, s Scope) (ScopeState, error) {
	if err := checkScope(s); err != nil {
		return ScopeState{}, errors.Join(err, ErrNotFound) // such a scope cannot exist
	}
	if err := ctx.Err(); err != nil {
		return ScopeState{}, err
	}
	scope := path.Join(t.slicePath(s.Slice), s.ID+scopeSuffix)
	if busy, err := t.h.Populated(path.Join(scope, inner)); err != nil || !busy {
		return ScopeState{}, fmt.Errorf("cannot recover scope %s: %w", s.ID, errors.Join(err, ErrNotFound))
	}
	t.register(s.ID, scope)
	return t.scopeState(s.ID, scope), nil
}

// Scopes reads back every scope that contains a process.
func (t *Tree) Scopes(ctx context.Context) ([]ScopeState, error) {
	var states []ScopeState
	err := t.walk(ctx, func(cg string, _ SliceName, scope string) error {
		if scope == "" {
			return nil
		}
		busy, err := t.h.Populated(path.Join(cg, inner))
		if busy {
			states = append(states, ScopeState{ID: scope, Path: path.Join(cg, inner)})
		}
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
	return states, err
}

// Members lists the processes in the scope now.
func (t *Tree) Members(_ context.Context, id string) ([]Process, error) {
	leaf, err := t.Leaf(id)
	if err != nil {
		return nil, err
	}
	return t.h.Processes(leaf)
}

// WaitEmpty blocks until the scope contains no process. Then its supervisor ends, and it removes the scope's directories.
func (t *Tree) WaitEmpty(ctx context.Context, id string) error {
	scope, err := t.scope(id)
	if err != nil {
		return nil //nolint:nilerr // the scope has ended
	}
	err = t.h.WaitEmpty(ctx, path.Join(scope, inner))
	if err == nil {
		err = t.endSupervisor(ctx, scope, time.Now().Add(supervisorTimeout))
	}
	if err != nil {
		return fmt.Errorf("cannot wait for the end of scope %s: %w", id, err)
	}
	killed, _ := t.h.oomKills(scope)
	if err := t.removeScope(id, scope); err != nil {
		return err
	}
	if killed > 0 {
		return ErrOutOfMemory
	}
	return nil
}

// KillScope kills every process in the scope, awaits the end of its supervisor, and removes it.
func (t *Tree) KillScope(ctx context.Context, id string) error {
	scope, err := t.scope(id)
	if err != nil {
		return nil //nolint:nilerr // a missing scope is no error
	}
	err = t.h.Kill(ctx, path.Join(scope, inner))
	if err == nil {
		err = t.endSupervisor(context.WithoutCancel(ctx), scope, time.Now().Add(supervisorTimeout))
	}
	if err != nil {
		return fmt.Errorf("cannot kill scope %s: %w", id, err)
	}
	return t.removeScope(id, scope)
}

// ScopeOf returns the scope of the process.
func (t *Tree) ScopeOf(pid int) (string, bool) { return t.index.ScopeOf(pid) }

// Leaf is the scope's inner cgroup, which is the registered one.
func (t *Tree) Leaf(id string) (string, error) {
	leaf, ok := t.index.Path(id)
	if !ok {
		return "", noScope(id)
	}
	return leaf, nil
}

// Destroy kills all processes in the subtree and removes it. It is for demonstrations and tests; a daemon never calls it.
func (t *Tree) Destroy(ctx context.Context) error {
	if err := t.h.Kill(ctx, t.top); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.h.Remove(t.top)
}

func (t *Tree) scope(id string) (string, error) {
	leaf, err := t.Leaf(id)
	if err != nil {
		return "", err
	}
	return path.Dir(leaf), nil
}

func noScope(id string) error { return fmt.Errorf("scope %s: %w", id, ErrNotFound) }

// register makes the processes in the inner cgroup those of the scope. A supervisor is not one of them.
func (t *Tree) register(id, scope string) { t.index.Register(id, path.Join(scope, inner)) }

// removeScope removes an empty scope's directories, unless the scope was started again meanwhile. Those of a supervisor that was
// killed and has not exited stay until the next NewTree.
func (t *Tree) removeScope(id, scope string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.h.Remove(scope)
	if errors.Is(err, ErrInUse) {
		if busy, _ := t.h.Populated(path.Join(scope, inner)); busy {
			return nil
		}
		err = nil
	}
	if err == nil {
		t.forget(id)
	}
	return err
}

// forget drops what is known about a scope that was removed.
func (t *Tree) forget(id string) {
	t.ForgetFiles(id)
	t.index.Forget(id)
}

// sweep registers the scopes that contain processes and removes the empty ones, which a killed daemon has left. It replaces
// device programs of another version.
func (t *Tree) sweep() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Supervisors of scopes that ended meanwhile end by themselves. All together have as long as one has.
	ctx, end := context.Background(), time.Now().Add(supervisorTimeout)
	return t.walk(ctx, func(cg string, _ SliceName, scope string) error {
		if scope == "" {
			return t.renewDeviceRules(cg)
		}
		if busy, err := t.h.Populated(path.Join(cg, inner)); !busy && (err == nil || errors.Is(err, ErrNotFound)) {
			_ = t.endSupervisor(ctx, cg, end) // One that cannot be ended keeps its scope. The daemon starts all the same.
		}
		if err := t.h.Remove(cg); errors.Is(err, ErrInUse) {
			t.register(scope, cg)
		} else if err != nil {
			return err
		}
		return t.renewDeviceRules(cg)
	})
}

// makeSliceLocked creates the slice's directories, outermost first, and enables the controllers for the inner ones. mu
// is held.
func (t *Tree) makeSliceLocked(name SliceName) (created bool, err error) {
	if err := name.Check(); err != nil {
		return false, err
	}
	for _, n := range []SliceName{{}, {Tenant: name.Tenant}, name} {
		cg := t.slicePath(n)
		if !t.h.Exists(cg) {
			created = true
			if err := mkdir(t.h.Dir(cg)); err != nil {
				return created, fmt.Errorf("cannot create slice %s: %w", n, err)
			}
		}
		if n.Grant == "" {
			// Also for a slice that exists: the daemon may have been killed between its creation and this.
			wrote, err := t.enable(cg)
			created = created || wrote
			if err != nil {
				return created, err
			}
		}
	}
	return created, nil
}

func (t *Tree) slicePath(n SliceName) string {
	p := t.top
	if n.Tenant != "" {
		p = path.Join(p, n.Tenant+sliceSuffix)
	}
	if n.Grant != "" {
		p = path.Join(p, n.Grant+sliceSuffix)
	}
	return p
}

// limits reads the active limits of the cgroup.
func (t *Tree) limits(cg string) (Limits, error) { return t.h.Limits(cg, t.info.Limits, Limits{}) }

// enableAll enables the controllers from the root down to the children of the subtree, and returns the limits that are
// enforced there.
func (t *Tree) enableAll() ([]string, error) {
	if _, err := t.enable("/"); err != nil {
		return nil, err
	}
	if _, err := t.enable(t.top); err != nil {
		return nil, err
	}
	on, err := readWords(t.h.Dir(t.top), "cgroup.subtree_control")
	if err != nil {
		return nil, fmt.Errorf("cannot read the controllers of %s: %w", t.top, err)
	}
	var limits []string
	for _, name := range LimitNames() {
		if slices.Contains(on, controllerOf(name)) {
			limits = append(limits, name)
		}
	}
	return limits, nil
}

// enable enables, for the cgroup's children, every controller that has a limit and that the cgroup has. The kernel
// refuses it for a cgroup that contains processes: then the limit is not enforced, and Info.Limits does not name it.
func (t *Tree) enable(cg string) (wrote bool, err error) {
	dir := t.h.Dir(cg)
	has, err := readWords(dir, "cgroup.controllers")
	if err != nil {
		return false, fmt.Errorf("cannot read the controllers of %s: %w", cg, err)
	}
	on, err := readWords(dir, "cgroup.subtree_control")
	if err != nil {
		return false, fmt.Errorf("cannot read the controllers of %s: %w", cg, err)
	}
	for _, name := range LimitNames() {
		c := controllerOf(name)
		if !slices.Contains(has, c) || slices.Contains(on, c) {
			continue
		}
		if writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+c) == nil {
			wrote = true
		}
	}
	return wrote, nil
}

// walk calls a function for every slice and every scope of the subtree, outermost first.
func (t *Tree) walk(ctx context.Context, use func(cg string, name SliceName, scope string) error) error {
	var level func(cg string, name SliceName) error
	level = func(cg string, name SliceName) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := use(cg, name, ""); err != nil {
			return err
		}
		children, err := t.h.Children(cg)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, below := range children {
			if id, ok := strings.CutSuffix(path.Base(below), scopeSuffix); ok {
				err = use(below, name, id)
			} else if part, ok := strings.CutSuffix(path.Base(below), sliceSuffix); ok && name.Grant == "" {
				next := SliceName{Tenant: part}
				if name.Tenant != "" {
					next = SliceName{Tenant: name.Tenant, Grant: part}
				}
				err = level(below, next)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return level(t.top, SliceName{})
}

func checkScope(s Scope) error {
	if !goodName(s.ID) {
		return fmt.Errorf("cannot name a scope %q: use letters, digits, '.', '_' and '-'", s.ID)
	}
	return s.Slice.Check()
}

// inUse is ErrInUse with the first few processes.
func inUse(ps []Process) error {
	const most = 3
	names := make([]string, 0, most+1)
	for i, p := range ps {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(ps)-most))
			break
		}
		names = append(names, fmt.Sprintf("pid %d (%s)", p.PID, procfs.Name(p.PID)))
	}
	return fmt.Errorf("%w: %s", ErrInUse, strings.Join(names, ", "))
}

// mkdir creates a cgroup. An existing one is no error.
func mkdir(dir string) error {
	err := unix.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func readWords(dir, file string) ([]string, error) {
	b, err := boundedread.Trusted(filepath.Join(dir, file), boundedread.Value)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(b)), nil
}
