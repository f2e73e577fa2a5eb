package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpushare/gpushare/internal/procfs"
)

// LeafFreezer is a gate that tells which cgroup it freezes. Every Port is one.
type LeafFreezer interface {
	ScopeFreezer
	Leaf(id string) (cg string, err error)
}

// FreezerOptions say where the guard keeps its deadlines and how long a freeze may last.
type FreezerOptions struct {
	RunDir    string        // where gpushare-thaw looks too
	ThawAfter time.Duration // the longest time between two Freeze calls of one scope; 5 s when zero
	Root      string        // where proc/ is found; "/" when empty
}

// Freezer is a gate that freezes nobody whom only this process could thaw: before each freeze it writes a deadline to a
// file, and it refuses while gpushare-thaw, which thaws what is past its deadline or was frozen by a process that has
// died, does not run. Freezing again what is frozen moves the deadline.
type Freezer struct {
	freezer   LeafFreezer
	dir       string
	lock      string
	thawAfter time.Duration
	boot      string
	self      Process

	mu    sync.Mutex
	files map[string]string // by scope: the file of its deadline; guarded by mu
}

var _ ScopeFreezer = (*Freezer)(nil)

// NewFreezer puts the guard before the gate.
func NewFreezer(freezer LeafFreezer, opt FreezerOptions) (*Freezer, error) {
	if opt.ThawAfter == 0 {
		opt.ThawAfter = 5 * time.Second
	}
	if opt.Root == "" {
		opt.Root = "/"
	}
	boot, err := procfs.BootID(opt.Root)
	if err != nil {
		return nil, err
	}
	pid := os.Getpid()
	start, err := procfs.Start(pid)
	if err != nil {
		return nil, fmt.Errorf("cannot read this process's start time: %w", err)
	}
	dir := filepath.Join(opt.RunDir, frozenDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory for frozen-until deadlines: %w", err)
	}
	return &Freezer{
		freezer: freezer, dir: dir, lock: filepath.Join(opt.RunDir, lockFile), thawAfter: opt.ThawAfter, boot: boot,
		self: Process{PID: pid, Start: start}, files: map[string]string{},
	}, nil
}

// Ready tells whether gpushare-thaw runs. nil means that Freeze will not refuse for its sake.
func (f *Freezer) Ready() error {
	held, err := lockHeld(f.lock)
	if err != nil {
		return err
	}
	if !held {
		return ErrNoThawer
	}
	return nil
}

// Freeze stops the scope's processes, for as long as the guard holds. ErrNoThawer when gpushare-thaw does not run.
func (f *Freezer) Freeze(ctx context.Context, id string) error {
	cg, err := f.freezer.Leaf(id)
	if err != nil {
		return err
	}
	if err := f.Ready(); err != nil {
		return fmt.Errorf("cannot freeze %s: %w", id, err)
	}
	d := deadline{Cgroup: cg, Until: int64(procfs.BootTime() + f.thawAfter), Boot: f.boot, By: f.self}
	if err := f.writeDeadline(id, d); err != nil {
		return fmt.Errorf("cannot freeze %s: cannot write its deadline: %w", id, err)
	}
	if err := f.freezer.Freeze(ctx, id); err != nil {
		return err // the deadline stays: some may be frozen until the caller thaws
	}
	// gpushare-thaw may have let go of its lock since it was looked at. It looks at all deadlines once more after that:
	// either it saw ours, or we see now that it is gone.
	if err := f.Ready(); err != nil {
		return errors.Join(fmt.Errorf("cannot freeze %s: %w", id, err), f.Thaw(context.WithoutCancel(ctx), id))
	}
	return nil
}

// Thaw continues the scope's processes.
func (f *Freezer) Thaw(ctx context.Context, id string) error {
	if err := f.freezer.Thaw(ctx, id); err != nil {
		return err
	}
	f.mu.Lock()
	name, ok := f.files[id]
	delete(f.files, id)
	f.mu.Unlock()
	if !ok {
		return nil
	}
	return f.remove(name)
}

// writeDeadline writes the scope's deadline and removes the one before.
func (f *Freezer) writeDeadline(id string, d deadline) error {
	name, err := d.write(f.dir, id)
	if err != nil {
		return err
	}
	f.mu.Lock()
	old, ok := f.files[id]
	f.files[id] = name
	f.mu.Unlock()
	if !ok || old == name {
		return nil
	}
	return f.remove(old)
}

func (f *Freezer) remove(name string) error {
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the deadline %s: %w", name, err)
	}
	return nil
}

// Frozen reads back whether the scope's processes are stopped.
func (f *Freezer) Frozen(id string) (bool, error) { return f.freezer.Frozen(id) }
