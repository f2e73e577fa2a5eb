// Package cgrouptest contains an adapter that keeps slices in memory, for tests of the packages that plan and set slices.
// Only tests use it.
package cgrouptest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gpushare/gpushare/cgroup"
)

// Memory is an adapter with slices in memory, and with a migration policy if Policy is set. Its scopes are those of
// cgroup.Processes.
type Memory struct {
	*cgroup.Processes
	// Policy is the migration policy; nil on a host without one.
	Policy *Policy

	mu     sync.Mutex // guards what follows
	all    map[cgroup.SliceName]cgroup.Slice
	writes int
	broken map[cgroup.SliceName]error
	once   map[cgroup.SliceName]bool // the next change only
}

// NewMemory returns an adapter without slices.
func NewMemory() *Memory {
	return &Memory{
		Processes: cgroup.NewProcesses(""),
		all:       map[cgroup.SliceName]cgroup.Slice{},
		broken:    map[cgroup.SliceName]error{},
		once:      map[cgroup.SliceName]bool{},
	}
}

// Info reports what a test of slices needs.
func (m *Memory) Info() cgroup.Info {
	return cgroup.Info{
		Adapter: "memory",
		Slices:  true,
		Driver:  cgroup.DriverCgroupfs,
		Devices: true,
		Limits:  []string{"cpu", "memory", "tasks"},
	}
}

// Abilities contains the migration policy, if there is one.
func (m *Memory) Abilities() cgroup.Abilities {
	if m.Policy == nil {
		return cgroup.Abilities{}
	}
	return cgroup.Abilities{Migration: m.Policy}
}

// Writes is the number of changes through the port.
func (m *Memory) Writes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// Break makes every change of a slice fail, until it is called with nil.
func (m *Memory) Break(name cgroup.SliceName, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken[name] = err
}

// BreakOnce makes the next change of a slice fail.
func (m *Memory) BreakOnce(name cgroup.SliceName, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken[name], m.once[name] = err, true
}

// failsLocked is the error of a change of the slice now. mu is held.
func (m *Memory) failsLocked(name cgroup.SliceName) error {
	err := m.broken[name]
	if m.once[name] {
		delete(m.broken, name)
		delete(m.once, name)
	}
	return err
}

// Tamper sets a slice without counting it, as another program would.
func (m *Memory) Tamper(s cgroup.Slice) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[s.Name] = s
}

// SetSlice sets a slice.
func (m *Memory) SetSlice(_ context.Context, s cgroup.Slice) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failsLocked(s.Name); err != nil {
		return false, err
	}
	if old, ok := m.all[s.Name]; ok && state(old).Matches(s) {
		return false, nil
	}
	m.writes++
	m.all[s.Name] = s
	return true, nil
}

func state(s cgroup.Slice) cgroup.SliceState {
	return cgroup.SliceState{Name: s.Name, Path: "/" + s.Name.String(), Limits: s.Limits, Closed: s.Closed, Devices: s.Devices}
}

// Slices lists all slices.
func (m *Memory) Slices(context.Context) ([]cgroup.SliceState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []cgroup.SliceState
	for _, s := range m.all {
		out = append(out, state(s))
	}
	slices.SortFunc(out, func(a, b cgroup.SliceState) int { return cmp.Compare(a.Name.String(), b.Name.String()) })
	return out, nil
}

// Slice reads one slice.
func (m *Memory) Slice(_ context.Context, name cgroup.SliceName) (cgroup.SliceState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.all[name]
	if !ok {
		return cgroup.SliceState{}, fmt.Errorf("slice %s: %w", name, cgroup.ErrNotFound)
	}
	return state(s), nil
}

// RemoveSlice removes one slice.
func (m *Memory) RemoveSlice(_ context.Context, name cgroup.SliceName) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failsLocked(name); err != nil {
		return err
	}
	if _, ok := m.all[name]; ok {
		m.writes++
		delete(m.all, name)
	}
	return nil
}

// Names lists the names of the slices.
func (m *Memory) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for name := range maps.Keys(m.all) {
		out = append(out, name.String())
	}
	slices.Sort(out)
	return out
}

// Policy is a migration policy in memory.
type Policy struct {
	mu     sync.Mutex // guards what follows
	denied bool
	err    error
}

// Set changes the policy, as another program would. With an error, reading it fails.
func (p *Policy) Set(denied bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denied, p.err = denied, err
}

// MigrationDenied reads the policy.
func (p *Policy) MigrationDenied() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.denied, p.err
}

// DenyMigration denies migration.
func (p *Policy) DenyMigration(context.Context) error { p.Set(true, nil); return nil }

// AllowMigration allows migration.
func (p *Policy) AllowMigration(context.Context) error { p.Set(false, nil); return nil }
