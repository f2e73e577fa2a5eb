package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Visitors is the adapter for scopes whose processes stay in a cgroup that is not ours: somebody else's job, a service,
// a login, a container. It reads, and writes nothing there: no limit, no device rule, no freeze, and it ends nobody. A
// scope is a cgroup with all below it, but without what another scope holds.
//
// It keeps its scopes in memory: after a restart the caller adopts them again.
type Visitors struct {
	h         Hierarchy
	elsewhere func(pid int) bool
	why       error // nothing can be visited; nil when it can
	index     Index
	bells     bells

	mu     sync.Mutex
	scopes map[string]*visit // by id; guarded by mu
}

// visit is one scope. A path can be used again by another cgroup, an inode number is not before the next boot.
type visit struct {
	cgroup   string
	inode    uint64
	released chan struct{} // closed when the scope is forgotten
}

var _ Port = (*Visitors)(nil)

// VisitorsOptions are for NewVisitors; the zero value is the usual host.
type VisitorsOptions struct {
	Mount string // of the cgroup v2 hierarchy; found when empty
	// Elsewhere tells whether a process is in a scope of another adapter: then it is not a visitor's. nil: none is.
	Elsewhere func(pid int) bool
}

// NewVisitors makes the adapter. Without a cgroup v2 hierarchy it refuses every scope with ErrNotSupported.
func NewVisitors(opt VisitorsOptions) *Visitors {
	v := &Visitors{h: Hierarchy{Mount: opt.Mount}, elsewhere: opt.Elsewhere, scopes: map[string]*visit{}}
	if v.elsewhere == nil {
		v.elsewhere = func(int) bool { return false }
	}
	if v.h.Mount == "" {
		v.h, v.why = FindHierarchy()
	}
	return v
}

// Info says that nothing is enforced here by this adapter. Whoever made the cgroup may enforce much.
func (v *Visitors) Info() Info {
	if v.why != nil {
		return Info{Adapter: "visitors", Detail: v.why.Error()}
	}
	return Info{Adapter: "visitors", Detail: "processes stay in cgroups that are not ours"}
}

// Abilities is to list who is there.
func (v *Visitors) Abilities() Abilities { return Abilities{PIDs: v.Census} }

// SetSlice is not for visitors.
func (v *Visitors) SetSlice(context.Context, Slice) (bool, error) {
	return false, fmt.Errorf("cannot make a slice: %w", ErrNotSupported)
}

// Slices are none.
func (v *Visitors) Slices(context.Context) ([]SliceState, error) { return nil, nil }

// Slice is not there.
func (v *Visitors) Slice(_ context.Context, name SliceName) (SliceState, error) {
	return SliceState{}, fmt.Errorf("slice %s: %w", name, ErrNotFound)
}

// RemoveSlice finds none.
func (v *Visitors) RemoveSlice(context.Context, SliceName) error { return nil }

// StartScope says that all processes in the cgroup s.Cgroup and below it are the scope's from now on. It must hold one.
// The scope's devices and limits are not looked at.
func (v *Visitors) StartScope(_ context.Context, s Scope) (ScopeState, error) {
	if err := v.enter(s); err != nil {
		return ScopeState{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	return ScopeState{ID: s.ID, Path: s.Cgroup}, nil
}

// Adopt takes the scope up again. ErrNotFound when its cgroup is gone or empty.
func (v *Visitors) Adopt(_ context.Context, s Scope) (ScopeState, error) {
	if err := v.enter(s); err != nil {
		return ScopeState{}, fmt.Errorf("cannot adopt scope %s: %w", s.ID, err)
	}
	return ScopeState{ID: s.ID, Path: s.Cgroup}, nil
}

func (v *Visitors) enter(s Scope) error {
	if err := checkScope(s); err != nil {
		return err
	}
	if v.why != nil {
		return v.why
	}
	if err := cleanPath(s.Cgroup); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	busy, err := v.h.Populated(s.Cgroup)
	if err != nil {
		return err
	}
	if !busy {
		return fmt.Errorf("cgroup %s holds no process: %w", s.Cgroup, ErrNotFound)
	}
	inode, err := inodeOf(v.h.Dir(s.Cgroup))
	if err != nil {
		return err
	}
	for id, other := range v.scopes {
		if other.cgroup == s.Cgroup && id != s.ID {
			return fmt.Errorf("cgroup %s is of scope %s: %w", s.Cgroup, id, ErrInUse)
		}
	}
	if old := v.scopes[s.ID]; old != nil {
		if old.cgroup == s.Cgroup && old.inode == inode {
			return nil
		}
		v.releaseLocked(s.ID)
	}
	v.scopes[s.ID] = &visit{cgroup: s.Cgroup, inode: inode, released: make(chan struct{})}
	v.index.Register(s.ID, s.Cgroup)
	return nil
}

// Scopes lists the scopes that still hold a process.
func (v *Visitors) Scopes(context.Context) ([]ScopeState, error) {
	var states []ScopeState
	for _, id := range v.index.IDs() {
		if s, err := v.find(id); err == nil && v.busy(s) {
			states = append(states, ScopeState{ID: id, Path: s.cgroup})
		}
	}
	slices.SortFunc(states, func(a, b ScopeState) int { return strings.Compare(a.ID, b.ID) })
	return states, nil
}

// Members lists the processes in the cgroup and below it, without those that another scope holds.
func (v *Visitors) Members(_ context.Context, id string) ([]Process, error) {
	s, err := v.find(id)
	if err != nil {
		return nil, err
	}
	if !v.same(s) {
		return nil, fmt.Errorf("scope %s: %w", id, ErrNotFound)
	}
	ps, err := v.h.Processes(s.cgroup)
	return slices.DeleteFunc(ps, func(p Process) bool {
		owner, ok := v.Owner(p.PID)
		return !ok || owner != id || v.elsewhere(p.PID)
	}), err
}

// lookAnyway bounds how long a waiter trusts that it is told.
const lookAnyway = 5 * time.Second

// WaitEmpty blocks until the cgroup and all below it hold no process, or are gone. The scope is forgotten then.
func (v *Visitors) WaitEmpty(ctx context.Context, id string) error {
	s, err := v.find(id)
	if err != nil {
		return nil //nolint:nilerr // gone is what was waited for
	}
	rung, off, err := v.bells.hang(v.h.Dir(s.cgroup))
	if err == nil {
		defer off()
	}
	// Without a bell (none could be had, or the cgroup is gone) the looks alone decide.
	timer := time.NewTimer(lookAnyway)
	defer timer.Stop()
	for v.busy(s) {
		timer.Reset(lookAnyway)
		select {
		case <-rung:
		case <-timer.C:
		case <-s.released:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for the end of scope %s: %w", id, ctx.Err())
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.scopes[id] == s {
		v.releaseLocked(id)
	}
	return nil
}

// KillScope is not for visitors: who holds a GPU is stopped by name, as one process.
func (v *Visitors) KillScope(_ context.Context, id string) error {
	if _, err := v.find(id); err != nil {
		return nil //nolint:nilerr // no such scope is no error
	}
	return fmt.Errorf("cannot kill scope %s: its cgroup is not ours: %w", id, ErrNotSupported)
}

// Release forgets the scope and leaves its processes as they are. No such scope is no error.
func (v *Visitors) Release(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.releaseLocked(id)
}

func (v *Visitors) releaseLocked(id string) {
	if s := v.scopes[id]; s != nil {
		close(s.released)
	}
	delete(v.scopes, id)
	v.index.Forget(id)
}

// Leaf is not there: nothing here may be frozen.
func (v *Visitors) Leaf(string) (string, error) { return "", errVisitor }

// Owner tells which scope's cgroup holds the process; of several that lie in each other the innermost. It does not look
// at scopes of other adapters.
func (v *Visitors) Owner(pid int) (string, bool) { return v.index.Owner(pid) }

// Census lists the processes of all scopes.
func (v *Visitors) Census() map[int]string { return v.index.Census(v.h) }

// At tells which scope's cgroup the cgroup is or is below.
func (v *Visitors) At(cg string) (id string, ok bool) { return v.index.lookup([]byte(cg)) }

// Freeze is never done here: who freezes a login or a service of somebody else's takes more than a GPU's time.
func (v *Visitors) Freeze(context.Context, string) error { return errVisitor }

// Thaw has nothing to do: nobody is ever frozen by us.
func (v *Visitors) Thaw(context.Context, string) error { return nil }

// Frozen is never so by us.
func (v *Visitors) Frozen(string) (bool, error) { return false, nil }

var errVisitor = fmt.Errorf("cannot freeze in a cgroup that is not ours: %w", ErrNotSupported)

func (v *Visitors) find(id string) (*visit, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s, ok := v.scopes[id]
	if !ok {
		return nil, fmt.Errorf("scope %s: %w", id, ErrNotFound)
	}
	return s, nil
}

// busy tells whether the scope's cgroup is still the same and holds a process.
func (v *Visitors) busy(s *visit) bool {
	if !v.same(s) {
		return false
	}
	busy, err := v.h.Populated(s.cgroup)
	return busy || err != nil && !errors.Is(err, ErrNotFound) // what cannot be read is not over
}

func (v *Visitors) same(s *visit) bool {
	inode, err := inodeOf(v.h.Dir(s.cgroup))
	return err == nil && inode == s.inode
}

func inodeOf(dir string) (uint64, error) {
	fi, err := os.Stat(dir)
	if gone(err) {
		return 0, fmt.Errorf("cgroup %s: %w", dir, ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot look at cgroup %s: %w", dir, err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("cannot tell inodes apart here")
	}
	return st.Ino, nil
}
