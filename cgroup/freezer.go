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

// LeafFreezer is a ScopeFreezer that reports which cgroup it freezes. Every Port is one.
type LeafFreezer interface {
	ScopeFreezer
	Leaf(id string) (cg string, err error)
}

// FreezerOptions are for NewFreezer.
type FreezerOptions struct {
	RunDir    string        // for the deadlines; gpushare-thaw must use the same
	ThawAfter time.Duration // from a Freeze call to its deadline; 5 s when zero
	Root      string        // the directory that contains proc/; "/" when empty
}

// Freezer freezes scopes with a thaw deadline. It writes the deadline to a file before each freeze. gpushare-thaw thaws a
// scope when its deadline has passed or when the process that froze it has exited. Freezer therefore refuses to freeze
// while gpushare-thaw does not run. Freezing a frozen scope again moves its deadline.
type Freezer struct {
	freezer   LeafFreezer
	dir       string
	lock      string
	thawAfter time.Duration
	boot      string
	self      Process

	mu    sync.Mutex
	files map[string]string // deadline file of each scope; guarded by mu
}

var _ ScopeFreezer = (*Freezer)(nil)

// NewFreezer returns a Freezer that freezes with freezer.
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
		return nil, fmt.Errorf("cannot create the directory for thaw deadlines: %w", err)
	}
	return &Freezer{
		freezer: freezer, dir: dir, lock: filepath.Join(opt.RunDir, lockFile), thawAfter: opt.ThawAfter, boot: boot,
		self: Process{PID: pid, Start: start}, files: map[string]string{},
	}, nil
}

// Ready returns nil when gpushare-thaw runs, and ErrNoThawWatchdog when it does not.
func (f *Freezer) Ready() error {
	held, err := lockHeld(f.lock)
	if err != nil {
		return err
	}
	if !held {
		return ErrNoThawWatchdog
	}
	return nil
}

// Freeze stops the scope's processes until Thaw or the deadline. ErrNoThawWatchdog when gpushare-thaw does not run.
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
		return err // the deadline remains: some processes may be frozen until the caller thaws them
	}
	// gpushare-thaw may have released its lock since the first check. It reads all deadlines once more after the release:
	// either it saw this one, or this check fails.
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
