package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Processes is the adapter for a user without privileges: no cgroup, no limit, no freezer. A scope is the process tree
// of its command. A process is a member when a member is its parent or its session leader; it remains a member after its
// parent has exited. A process whose parents all exited before it was observed is lost: this adapter isolates nothing.
//
// It keeps its scopes in memory: after a restart the caller recovers them.
type Processes struct {
	reason string

	// mu guards all below.
	mu        sync.Mutex
	slices    map[SliceName]Slice
	scopes    map[string]*processTree
	memberOf  map[Process]string // the scope of each member
	refreshed time.Duration      // time since boot of the last read of all processes
}

// processTree is one scope.
type processTree struct {
	scope   Scope
	members map[Process]bool
}

var _ Port = (*Processes)(nil)

// NewProcesses returns the adapter. reason says, for people, why no stronger adapter is possible here.
func NewProcesses(reason string) *Processes {
	return &Processes{reason: reason, slices: map[SliceName]Slice{}, scopes: map[string]*processTree{}, memberOf: map[Process]string{}}
}

// Info reports that nothing is enforced.
func (p *Processes) Info() Info { return Info{Adapter: "processes", Detail: p.reason} }

// Abilities are none: there is no cgroup to read or change.
func (p *Processes) Abilities() Abilities { return Abilities{} }

// SetSlice records the slice's name. It never writes anything.
func (p *Processes) SetSlice(_ context.Context, s Slice) (bool, error) {
	if err := s.Name.Check(); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addSliceLocked(s.Name)
	return false, nil
}

// Slices lists the recorded slices. None has limits.
func (p *Processes) Slices(context.Context) ([]SliceState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	states := make([]SliceState, 0, len(p.slices))
	for name := range p.slices {
		states = append(states, SliceState{Name: name})
	}
	slices.SortFunc(states, func(a, b SliceState) int { return compareNames(a.Name, b.Name) })
	return states, nil
}

// Slice returns the slice if it is recorded.
func (p *Processes) Slice(_ context.Context, name SliceName) (SliceState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.slices[name]; !ok {
		return SliceState{}, fmt.Errorf("slice %s: %w", name, ErrNotFound)
	}
	return SliceState{Name: name}, nil
}

// RemoveSlice forgets the slice.
func (p *Processes) RemoveSlice(_ context.Context, name SliceName) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refreshLocked(); err != nil {
		return err
	}
	for id, t := range p.scopes {
		inside := name == SliceName{} || t.scope.Slice == name || name.Grant == "" && t.scope.Slice.Tenant == name.Tenant
		if inside && len(t.members) > 0 {
			return fmt.Errorf("cannot remove slice %s: scope %s: %w", name, id, inUse(sortedMembers(t)))
		}
	}
	for n := range p.slices {
		if n == name || name == (SliceName{}) || name.Grant == "" && n.Tenant == name.Tenant {
			delete(p.slices, n)
		}
	}
	return nil
}

// StartScope makes the process and all that it starts from now on members of the scope.
func (p *Processes) StartScope(_ context.Context, s Scope) (ScopeState, error) {
	if err := checkScope(s); err != nil {
		return ScopeState{}, err
	}
	if !procfs.Alive(s.Process.PID, s.Process.Start) {
		return ScopeState{}, fmt.Errorf("cannot start scope %s: pid %d: %w", s.ID, s.Process.PID, procfs.ErrNoProcess)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.scopes[s.ID]; ok && !old.members[s.Process] {
		if err := p.refreshLocked(); err != nil {
			return ScopeState{}, err
		}
		if len(old.members) > 0 {
			return ScopeState{}, fmt.Errorf("cannot start scope %s: it exists already: %w", s.ID, inUse(sortedMembers(old)))
		}
	}
	if owner, ok := p.memberOf[s.Process]; ok && owner != s.ID {
		// As with cgroups, a process is in one scope only.
		delete(p.scopes[owner].members, s.Process)
	}
	p.addScopeLocked(s)
	p.addSliceLocked(s.Slice)
	return ScopeState{ID: s.ID}, nil
}

// Recover registers a scope whose first process is alive.
func (p *Processes) Recover(_ context.Context, s Scope) (ScopeState, error) {
	if err := checkScope(s); err != nil {
		return ScopeState{}, errors.Join(err, ErrNotFound) // such a scope cannot exist
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refreshLocked(); err != nil {
		return ScopeState{}, err
	}
	known := p.scopes[s.ID]
	alive := procfs.Alive(s.Process.PID, s.Process.Start)
	if !alive && (known == nil || len(known.members) == 0) {
		return ScopeState{}, fmt.Errorf("cannot recover scope %s: %w", s.ID, ErrNotFound)
	}
	if known == nil {
		p.addScopeLocked(s)
	}
	p.addSliceLocked(s.Slice)
	return ScopeState{ID: s.ID}, nil
}

// Scopes lists the scopes that have a process.
func (p *Processes) Scopes(context.Context) ([]ScopeState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refreshLocked(); err != nil {
		return nil, err
	}
	var ids []string
	for id, t := range p.scopes {
		if len(t.members) > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	states := make([]ScopeState, len(ids))
	for i, id := range ids {
		states[i] = ScopeState{ID: id}
	}
	return states, nil
}

// Members lists the processes of the scope.
func (p *Processes) Members(_ context.Context, id string) ([]Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refreshLocked(); err != nil {
		return nil, err
	}
	t, ok := p.scopes[id]
	if !ok {
		return nil, fmt.Errorf("scope %s: %w", id, ErrNotFound)
	}
	return sortedMembers(t), nil
}

// WaitEmpty blocks until all processes of the scope have exited. Then it forgets the scope.
func (p *Processes) WaitEmpty(ctx context.Context, id string) error {
	if err := waitNone(ctx, func() ([]Process, error) { return p.living(id) }, nil); err != nil {
		return fmt.Errorf("cannot wait for the end of scope %s: %w", id, err)
	}
	p.forget(id)
	return nil
}

// living lists the members that are alive, for WaitEmpty. All waiting goroutines share one read of all processes per
// refresh interval, because it costs about 10 µs a process.
func (p *Processes) living(id string) ([]Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if procfs.BootTime()-p.refreshed > refreshInterval {
		if err := p.refreshLocked(); err != nil {
			return nil, err
		}
	}
	t, ok := p.scopes[id]
	if !ok {
		return nil, fmt.Errorf("scope %s: %w", id, ErrNotFound)
	}
	if alive := slices.DeleteFunc(sortedMembers(t), func(m Process) bool { return !procfs.Alive(m.PID, m.Start) }); len(alive) > 0 {
		return alive, nil
	}
	// Read all processes once more before reporting that the scope is empty.
	if err := p.refreshLocked(); err != nil {
		return nil, err
	}
	return sortedMembers(t), nil
}

// KillScope kills every process of the scope until none is found.
func (p *Processes) KillScope(ctx context.Context, id string) error {
	if err := killAll(ctx, func() ([]Process, error) { return p.Members(ctx, id) }, sigkill, nil); err != nil {
		return fmt.Errorf("cannot kill scope %s: %w", id, err)
	}
	p.forget(id)
	return nil
}

// Release forgets the scope and leaves its processes as they are. A missing scope is no error.
func (p *Processes) Release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked(id)
}

// ScopeOf returns the scope of the process. It follows the process's parents up to a member.
func (p *Processes) ScopeOf(pid int) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.memberOf) == 0 {
		return "", false
	}
	var chain []Process
	// A chain of parents is short. The bound is for a tree that changes during the search.
	for range 256 {
		s, err := procfs.Read(pid)
		if err != nil {
			return "", false
		}
		self := identity(s)
		chain = append(chain, self)
		id, ok := p.memberOf[self]
		if !ok {
			id, ok = p.scopeOfSessionLocked(s, readStat)
		}
		if ok {
			for _, c := range chain {
				p.addLocked(id, c)
			}
			return id, true
		}
		if s.PPID <= 1 {
			return "", false
		}
		pid = s.PPID
	}
	return "", false
}

// Leaf is not supported: scopes are not cgroups.
func (p *Processes) Leaf(string) (string, error) { return "", errNoFreezer }

// Freeze is not supported.
func (p *Processes) Freeze(context.Context, string) error { return errNoFreezer }

// Thaw does nothing: Freeze is not supported.
func (p *Processes) Thaw(context.Context, string) error { return nil }

// Frozen returns false.
func (p *Processes) Frozen(string) (bool, error) { return false, nil }

var errNoFreezer = fmt.Errorf("cannot freeze without cgroups: %w", ErrNotSupported)

func (p *Processes) addScopeLocked(s Scope) {
	p.forgetLocked(s.ID)
	p.scopes[s.ID] = &processTree{scope: s, members: map[Process]bool{}}
	p.addLocked(s.ID, s.Process)
}

func (p *Processes) addLocked(id string, m Process) {
	p.scopes[id].members[m] = true
	p.memberOf[m] = id
}

func (p *Processes) addSliceLocked(name SliceName) {
	for _, n := range []SliceName{{}, {Tenant: name.Tenant}, name} {
		p.slices[n] = Slice{Name: n}
	}
}

func (p *Processes) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.scopes[id]; ok && len(t.members) == 0 {
		p.forgetLocked(id)
	}
}

func (p *Processes) forgetLocked(id string) {
	t, ok := p.scopes[id]
	if !ok {
		return
	}
	for m := range t.members {
		delete(p.memberOf, m)
	}
	delete(p.scopes, id)
}

// refreshLocked reads all processes once. It adds the children of members and removes members that have exited. mu is held.
func (p *Processes) refreshLocked() error {
	if len(p.scopes) == 0 {
		return nil
	}
	all, err := procfs.All()
	if err != nil {
		return err
	}
	p.refreshed = procfs.BootTime()
	byPID := make(map[int]procfs.Stat, len(all))
	for _, s := range all {
		byPID[s.PID] = s
	}
	read := func(pid int) (procfs.Stat, bool) { s, ok := byPID[pid]; return s, ok }
	// A child may come before its parent in the list, so repeat until nothing new is found. Dead members are removed
	// afterwards, because a session leader that has just exited still identifies the scope of its session.
	for changed := true; changed; {
		changed = false
		for _, s := range all {
			self := identity(s)
			if _, ok := p.memberOf[self]; ok || s.Dead() {
				continue
			}
			id, ok := p.memberOf[identity(byPID[s.PPID])]
			if !ok {
				id, ok = p.scopeOfSessionLocked(s, read)
			}
			if ok {
				p.addLocked(id, self)
				changed = true
			}
		}
	}
	for m, id := range p.memberOf {
		if s, ok := byPID[m.PID]; !ok || s.Start != m.Start || s.Dead() {
			delete(p.scopes[id].members, m)
			delete(p.memberOf, m)
		}
	}
	return nil
}

// scopeOfSessionLocked returns the scope whose member leads the session of the process. A process enters a session only by
// fork, so this also finds processes whose parents have exited. mu is held.
func (p *Processes) scopeOfSessionLocked(s procfs.Stat, read func(pid int) (procfs.Stat, bool)) (string, bool) {
	if s.Session <= 0 || s.Session == s.PID {
		return "", false
	}
	leader, ok := read(s.Session)
	if !ok || leader.Start > s.Start {
		return "", false
	}
	id, ok := p.memberOf[identity(leader)]
	return id, ok
}

func readStat(pid int) (procfs.Stat, bool) {
	s, err := procfs.Read(pid)
	return s, err == nil
}

func identity(s procfs.Stat) Process { return Process{PID: s.PID, Start: s.Start} }

func sortedMembers(t *processTree) []Process {
	ps := make([]Process, 0, len(t.members))
	for m := range t.members {
		ps = append(ps, m)
	}
	slices.SortFunc(ps, func(a, b Process) int { return a.PID - b.PID })
	return ps
}

func compareNames(a, b SliceName) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Grant, b.Grant))
}
