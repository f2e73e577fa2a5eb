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

// Attachments is the adapter for scopes whose processes stay in a cgroup that is not ours: somebody else's job, a service,
// a login, a container. It reads, and writes nothing there: no limit, no device rule, no freeze, and it ends nobody. A
// scope is a cgroup with all below it, but without what another scope holds.
//
// It keeps its scopes in memory: after a restart the caller adopts them again.
type Attachments struct {
	h            Hierarchy
	inOtherScope func(pid int) bool
	unavailable  error // nothing can be visited; nil when it can
	index        ScopeIndex
	watcher      cgroupWatcher

	mu     sync.Mutex
	scopes map[string]*attachment // by id; guarded by mu
}

// attachment is one scope. A path can be used again by another cgroup, an inode number is not before the next boot.
type attachment struct {
	cgroup   string
	inode    uint64
	released chan struct{} // closed when the scope is forgotten
}

var _ Port = (*Attachments)(nil)

// AttachmentsOptions are for NewAttachments; the zero value is the usual host.
type AttachmentsOptions struct {
	Mount string // of the cgroup v2 hierarchy; found when empty
	// InOtherScope tells whether a process is in a scope of another adapter: then it is not a visitor's. nil: none is.
	InOtherScope func(pid int) bool
}

// NewAttachments makes the adapter. Without a cgroup v2 hierarchy it refuses every scope with ErrNotSupported.
func NewAttachments(opt AttachmentsOptions) *Attachments {
	a := &Attachments{h: Hierarchy{Mount: opt.Mount}, inOtherScope: opt.InOtherScope, scopes: map[string]*attachment{}}
	if a.inOtherScope == nil {
		a.inOtherScope = func(int) bool { return false }
	}
	if a.h.Mount == "" {
		a.h, a.unavailable = FindHierarchy()
	}
	return a
}

// Info says that nothing is enforced here by this adapter. Whoever made the cgroup may enforce much.
func (a *Attachments) Info() Info {
	if a.unavailable != nil {
		return Info{Adapter: "attachments", Detail: a.unavailable.Error()}
	}
	return Info{Adapter: "attachments", Detail: "processes stay in cgroups that are not ours"}
}

// Abilities is to list who is there.
func (a *Attachments) Abilities() Abilities { return Abilities{PIDIndex: a.PIDIndex} }

// SetSlice is not for visitors.
func (a *Attachments) SetSlice(context.Context, Slice) (bool, error) {
	return false, fmt.Errorf("cannot make a slice: %w", ErrNotSupported)
}

// Slices are none.
func (a *Attachments) Slices(context.Context) ([]SliceState, error) { return nil, nil }

// Slice is not there.
func (a *Attachments) Slice(_ context.Context, name SliceName) (SliceState, error) {
	return SliceState{}, fmt.Errorf("slice %s: %w", name, ErrNotFound)
}

// RemoveSlice finds none.
func (a *Attachments) RemoveSlice(context.Context, SliceName) error { return nil }

// StartScope says that all processes in the cgroup s.Cgroup and below it are the scope's from now on. It must hold one.
// The scope's devices and limits are not looked at.
func (a *Attachments) StartScope(_ context.Context, s Scope) (ScopeState, error) {
	if err := a.attach(s); err != nil {
		return ScopeState{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	return ScopeState{ID: s.ID, Path: s.Cgroup}, nil
}

// Recover takes the scope up again. ErrNotFound when its cgroup is gone or empty.
func (a *Attachments) Recover(_ context.Context, s Scope) (ScopeState, error) {
	if err := a.attach(s); err != nil {
		return ScopeState{}, fmt.Errorf("cannot adopt scope %s: %w", s.ID, err)
	}
	return ScopeState{ID: s.ID, Path: s.Cgroup}, nil
}

func (a *Attachments) attach(s Scope) error {
	if err := checkScope(s); err != nil {
		return err
	}
	if a.unavailable != nil {
		return a.unavailable
	}
	if err := cleanPath(s.Cgroup); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	busy, err := a.h.Populated(s.Cgroup)
	if err != nil {
		return err
	}
	if !busy {
		return fmt.Errorf("cgroup %s holds no process: %w", s.Cgroup, ErrNotFound)
	}
	inode, err := inodeOf(a.h.Dir(s.Cgroup))
	if err != nil {
		return err
	}
	for id, other := range a.scopes {
		if other.cgroup == s.Cgroup && id != s.ID {
			return fmt.Errorf("cgroup %s is of scope %s: %w", s.Cgroup, id, ErrInUse)
		}
	}
	if old := a.scopes[s.ID]; old != nil {
		if old.cgroup == s.Cgroup && old.inode == inode {
			return nil
		}
		a.releaseLocked(s.ID)
	}
	a.scopes[s.ID] = &attachment{cgroup: s.Cgroup, inode: inode, released: make(chan struct{})}
	a.index.Register(s.ID, s.Cgroup)
	return nil
}

// Scopes lists the scopes that still hold a process.
func (a *Attachments) Scopes(context.Context) ([]ScopeState, error) {
	var states []ScopeState
	for _, id := range a.index.IDs() {
		if s, err := a.find(id); err == nil && a.populated(s) {
			states = append(states, ScopeState{ID: id, Path: s.cgroup})
		}
	}
	slices.SortFunc(states, func(a, b ScopeState) int { return strings.Compare(a.ID, b.ID) })
	return states, nil
}

// Members lists the processes in the cgroup and below it, without those that another scope holds.
func (a *Attachments) Members(_ context.Context, id string) ([]Process, error) {
	s, err := a.find(id)
	if err != nil {
		return nil, err
	}
	if !a.sameCgroup(s) {
		return nil, fmt.Errorf("scope %s: %w", id, ErrNotFound)
	}
	ps, err := a.h.Processes(s.cgroup)
	return slices.DeleteFunc(ps, func(p Process) bool {
		owner, ok := a.ScopeOf(p.PID)
		return !ok || owner != id || a.inOtherScope(p.PID)
	}), err
}

// pollInterval bounds how long a waiter trusts that it is told.
const pollInterval = 5 * time.Second

// WaitEmpty blocks until the cgroup and all below it hold no process, or are gone. The scope is forgotten then.
func (a *Attachments) WaitEmpty(ctx context.Context, id string) error {
	s, err := a.find(id)
	if err != nil {
		return nil //nolint:nilerr // gone is what was waited for
	}
	events, remove, err := a.watcher.add(a.h.Dir(s.cgroup))
	if err == nil {
		defer remove()
	}
	// Without a bell (none could be had, or the cgroup is gone) the looks alone decide.
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	for a.populated(s) {
		timer.Reset(pollInterval)
		select {
		case <-events:
		case <-timer.C:
		case <-s.released:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for the end of scope %s: %w", id, ctx.Err())
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.scopes[id] == s {
		a.releaseLocked(id)
	}
	return nil
}

// KillScope is not for visitors: who holds a GPU is stopped by name, as one process.
func (a *Attachments) KillScope(_ context.Context, id string) error {
	if _, err := a.find(id); err != nil {
		return nil //nolint:nilerr // no such scope is no error
	}
	return fmt.Errorf("cannot kill scope %s: its cgroup is not ours: %w", id, ErrNotSupported)
}

// Release forgets the scope and leaves its processes as they are. No such scope is no error.
func (a *Attachments) Release(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releaseLocked(id)
}

func (a *Attachments) releaseLocked(id string) {
	if s := a.scopes[id]; s != nil {
		close(s.released)
	}
	delete(a.scopes, id)
	a.index.Forget(id)
}

// Leaf is not there: nothing here may be frozen.
func (a *Attachments) Leaf(string) (string, error) { return "", errAttached }

// ScopeOf tells which scope's cgroup holds the process; of several that lie in each other the innermost. It does not look
// at scopes of other adapters.
func (a *Attachments) ScopeOf(pid int) (string, bool) { return a.index.ScopeOf(pid) }

// PIDIndex lists the processes of all scopes.
func (a *Attachments) PIDIndex() map[int]string { return a.index.PIDIndex(a.h) }

// ScopeAt tells which scope's cgroup the cgroup is or is below.
func (a *Attachments) ScopeAt(cg string) (id string, ok bool) { return a.index.lookup([]byte(cg)) }

// Freeze is never done here: who freezes a login or a service of somebody else's takes more than a GPU's time.
func (a *Attachments) Freeze(context.Context, string) error { return errAttached }

// Thaw has nothing to do: nobody is ever frozen by us.
func (a *Attachments) Thaw(context.Context, string) error { return nil }

// Frozen is never so by us.
func (a *Attachments) Frozen(string) (bool, error) { return false, nil }

var errAttached = fmt.Errorf("cannot freeze in a cgroup that is not ours: %w", ErrNotSupported)

func (a *Attachments) find(id string) (*attachment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.scopes[id]
	if !ok {
		return nil, fmt.Errorf("scope %s: %w", id, ErrNotFound)
	}
	return s, nil
}

// populated tells whether the scope's cgroup is still the same and holds a process.
func (a *Attachments) populated(s *attachment) bool {
	if !a.sameCgroup(s) {
		return false
	}
	busy, err := a.h.Populated(s.cgroup)
	return busy || err != nil && !errors.Is(err, ErrNotFound) // what cannot be read is not over
}

func (a *Attachments) sameCgroup(s *attachment) bool {
	inode, err := inodeOf(a.h.Dir(s.cgroup))
	return err == nil && inode == s.inode
}

func inodeOf(dir string) (uint64, error) {
	fi, err := os.Stat(dir)
	if isRemoved(err) {
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
