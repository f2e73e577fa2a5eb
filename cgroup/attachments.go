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

// Attachments is the adapter for scopes that are attached in place: their processes remain in a cgroup that gpushare does
// not manage, as of another scheduler's job, a service, a login or a container. It only reads that cgroup: it sets no
// limit and no device rule, freezes nothing (JobFreezer does, for engines) and kills nothing. A scope is a cgroup with all
// cgroups below it, without those of another scope; a scope that is kept may have several, and none of them need be there (kept.go).
//
// It keeps its scopes in memory: after a restart the caller recovers them.
type Attachments struct {
	h            Hierarchy
	inOtherScope func(pid int) bool
	unavailable  error // why there are no attachments here; nil when there can be
	index        ScopeIndex
	watcher      cgroupWatcher

	mu     sync.Mutex
	scopes map[string]*attachment // by id; guarded by mu
}

// attachment is one scope. Another cgroup can get the same path, but not the same inode number before the next boot.
type attachment struct {
	cgroup   string
	inode    uint64        // 0: the scope is kept, and any cgroup of the path is meant
	released chan struct{} // closed by Release
	kept     *keptCgroups  // nil: the scope ends with its processes
}

var _ Port = (*Attachments)(nil)

// AttachmentsOptions are for NewAttachments; the zero value is for a usual host.
type AttachmentsOptions struct {
	Mount string // of the cgroup v2 hierarchy; found when empty
	// InOtherScope reports whether a process is in a scope of another adapter: then it is no member here. nil: none is.
	InOtherScope func(pid int) bool
}

// NewAttachments returns the adapter. Without a cgroup v2 hierarchy it refuses every scope with ErrNotSupported.
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

// Info reports that this adapter enforces nothing. The manager of the cgroup may enforce limits.
func (a *Attachments) Info() Info {
	if a.unavailable != nil {
		return Info{Adapter: "attachments", Detail: a.unavailable.Error()}
	}
	return Info{Adapter: "attachments", Detail: "processes remain in cgroups that gpushare does not manage"}
}

// Abilities contains only the pid index.
func (a *Attachments) Abilities() Abilities { return Abilities{PIDIndex: a.PIDIndex} }

// SetSlice is not supported.
func (a *Attachments) SetSlice(context.Context, Slice) (bool, error) {
	return false, fmt.Errorf("cannot create a slice: %w", ErrNotSupported)
}

// Slices returns none.
func (a *Attachments) Slices(context.Context) ([]SliceState, error) { return nil, nil }

// Slice returns ErrNotFound.
func (a *Attachments) Slice(_ context.Context, name SliceName) (SliceState, error) {
	return SliceState{}, fmt.Errorf("slice %s: %w", name, ErrNotFound)
}

// RemoveSlice does nothing.
func (a *Attachments) RemoveSlice(context.Context, SliceName) error { return nil }

// StartScope makes all processes in the cgroup s.Cgroup and below it members of the scope. There must be one. It ignores
// the scope's devices and limits.
func (a *Attachments) StartScope(_ context.Context, s Scope) (ScopeState, error) {
	if err := a.attach(s); err != nil {
		return ScopeState{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	return ScopeState{ID: s.ID, Path: s.Cgroup}, nil
}

// Recover registers the scope again. ErrNotFound when its cgroup is removed or empty.
func (a *Attachments) Recover(_ context.Context, s Scope) (ScopeState, error) {
	if err := a.attach(s); err != nil {
		return ScopeState{}, fmt.Errorf("cannot recover scope %s: %w", s.ID, err)
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
	if s.Kept {
		return a.keepLocked(&s)
	}
	busy, err := a.h.Populated(s.Cgroup)
	if err != nil {
		return err
	}
	if !busy {
		return fmt.Errorf("cgroup %s contains no process: %w", s.Cgroup, ErrNotFound)
	}
	inode, err := inodeOf(a.h.Dir(s.Cgroup))
	if err != nil {
		return err
	}
	if err := a.freeLocked(s.ID, s.Cgroup); err != nil {
		return err
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

// freeLocked refuses a cgroup that another scope has.
func (a *Attachments) freeLocked(id, cg string) error {
	for other, s := range a.scopes {
		if other != id && slices.Contains(s.paths(), cg) {
			return fmt.Errorf("cgroup %s belongs to scope %s: %w", cg, other, ErrInUse)
		}
	}
	return nil
}

// paths are the cgroups of a scope.
func (s *attachment) paths() []string {
	if s.kept != nil {
		return s.kept.cgroups
	}
	return []string{s.cgroup}
}

// Scopes lists the scopes that contain a process.
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

// Members lists the processes in the cgroup and below it, without those of another scope.
func (a *Attachments) Members(_ context.Context, id string) ([]Process, error) {
	s, err := a.find(id)
	if err != nil {
		return nil, err
	}
	if !a.sameCgroup(s) {
		return nil, fmt.Errorf("scope %s: %w", id, ErrNotFound)
	}
	ps, err := a.processes(s)
	return slices.DeleteFunc(ps, func(p Process) bool {
		owner, ok := a.ScopeOf(p.PID)
		return !ok || owner != id || a.inOtherScope(p.PID)
	}), err
}

// processes lists those in the cgroups of a scope and below them. A cgroup of a scope that is kept need not be there.
func (a *Attachments) processes(s *attachment) (all []Process, err error) {
	if s.kept == nil {
		return a.h.Processes(s.cgroup)
	}
	for _, cg := range s.kept.cgroups {
		ps, err := a.h.Processes(cg)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return all, err
		}
		for _, p := range ps {
			if !slices.Contains(all, p) { // One of the cgroups may be below another.
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// pollInterval bounds the effect of a lost notification on WaitEmpty.
const pollInterval = 5 * time.Second

// WaitEmpty blocks until the cgroup and all below it are empty or removed. Then it forgets the scope. One that is kept ends when it is
// released.
func (a *Attachments) WaitEmpty(ctx context.Context, id string) error {
	s, err := a.find(id)
	if err != nil {
		return nil //nolint:nilerr // the scope has ended
	}
	if s.kept != nil {
		select {
		case <-s.released:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for the end of scope %s: %w", id, ctx.Err())
		}
	}
	events, remove, err := a.watcher.add(a.h.Dir(s.cgroup))
	if err == nil {
		defer remove()
	}
	// Without a watch (it failed, or the cgroup was removed) polling decides.
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

// KillScope is not supported: the caller stops the processes that use a GPU one by one.
func (a *Attachments) KillScope(_ context.Context, id string) error {
	if _, err := a.find(id); err != nil {
		return nil //nolint:nilerr // no such scope is no error
	}
	return fmt.Errorf("cannot kill scope %s: gpushare does not manage its cgroup: %w", id, ErrNotSupported)
}

// Release forgets the scope and leaves its processes as they are. A missing scope is no error.
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

// Leaf is not supported: nothing here may be frozen.
func (a *Attachments) Leaf(string) (string, error) { return "", errAttached }

// ScopeOf returns the scope whose cgroup contains the process: of nested ones the innermost. It ignores scopes of other
// adapters.
func (a *Attachments) ScopeOf(pid int) (string, bool) { return a.index.ScopeOf(pid) }

// PIDIndex lists the processes of all scopes.
func (a *Attachments) PIDIndex() map[int]string { return a.index.PIDIndex(a.h) }

// ScopeAt returns the scope whose cgroup is cg or a parent of it.
func (a *Attachments) ScopeAt(cg string) (id string, ok bool) { return a.index.lookup([]byte(cg)) }

// Freeze is not supported: it would stop all of a login or a service, and not only its use of the GPU.
func (a *Attachments) Freeze(context.Context, string) error { return errAttached }

// Thaw does nothing: Freeze is not supported.
func (a *Attachments) Thaw(context.Context, string) error { return nil }

// Frozen returns false.
func (a *Attachments) Frozen(string) (bool, error) { return false, nil }

var errAttached = fmt.Errorf("cannot freeze a cgroup that gpushare does not manage: %w", ErrNotSupported)

func (a *Attachments) find(id string) (*attachment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.scopes[id]
	if !ok {
		return nil, fmt.Errorf("scope %s: %w", id, ErrNotFound)
	}
	return s, nil
}

// populated reports whether the scope's cgroup is still the same one and contains a process.
func (a *Attachments) populated(s *attachment) bool {
	if !a.sameCgroup(s) {
		return false
	}
	for _, cg := range s.paths() {
		busy, err := a.h.Populated(cg)
		if busy || err != nil && !errors.Is(err, ErrNotFound) { // a read error does not mean that it is empty
			return true
		}
	}
	return false
}

func (a *Attachments) sameCgroup(s *attachment) bool {
	if s.kept != nil {
		return true
	}
	inode, err := inodeOf(a.h.Dir(s.cgroup))
	return err == nil && inode == s.inode
}

func inodeOf(dir string) (uint64, error) {
	fi, err := os.Stat(dir)
	if isRemoved(err) {
		return 0, fmt.Errorf("cgroup %s: %w", dir, ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot read cgroup %s: %w", dir, err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("cannot read inode numbers on this system")
	}
	return st.Ino, nil
}
