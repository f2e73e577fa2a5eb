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

// LeafGate is a gate that tells which cgroup it freezes. Every Port is one.
type LeafGate interface {
	Gate
	Leaf(id string) (cg string, err error)
}

// GuardOptions say where the guard keeps its deadlines and how long a freeze may last.
type GuardOptions struct {
	RunDir string        // where gpushare-thaw looks too
	Hold   time.Duration // the longest time between two Freeze calls of one scope; 5 s when zero
	Root   string        // where proc/ is found; "/" when empty
}

// Guard is a gate that freezes nobody whom only this process could thaw: before each freeze it writes a deadline to a
// file, and it refuses while gpushare-thaw, which thaws what is past its deadline or was frozen by a process that has
// died, does not run. Freezing again what is frozen moves the deadline.
type Guard struct {
	gate LeafGate
	dir  string
	lock string
	hold time.Duration
	boot string
	self Process

	mu    sync.Mutex
	files map[string]string // by scope: the file of its deadline; guarded by mu
}

var _ Gate = (*Guard)(nil)

// Guarded puts the guard before the gate.
func Guarded(gate LeafGate, opt GuardOptions) (*Guard, error) {
	if opt.Hold == 0 {
		opt.Hold = 5 * time.Second
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
	return &Guard{
		gate: gate, dir: dir, lock: filepath.Join(opt.RunDir, lockFile), hold: opt.Hold, boot: boot,
		self: Process{PID: pid, Start: start}, files: map[string]string{},
	}, nil
}

// Ready tells whether gpushare-thaw runs. nil means that Freeze will not refuse for its sake.
func (g *Guard) Ready() error {
	held, err := lockHeld(g.lock)
	if err != nil {
		return err
	}
	if !held {
		return ErrUnguarded
	}
	return nil
}

// Freeze stops the scope's processes, for as long as the guard holds. ErrUnguarded when gpushare-thaw does not run.
func (g *Guard) Freeze(ctx context.Context, id string) error {
	cg, err := g.gate.Leaf(id)
	if err != nil {
		return err
	}
	if err := g.Ready(); err != nil {
		return fmt.Errorf("cannot freeze %s: %w", id, err)
	}
	d := deadline{Cgroup: cg, Until: int64(procfs.BootTime() + g.hold), Boot: g.boot, By: g.self}
	if err := g.promise(id, d); err != nil {
		return fmt.Errorf("cannot freeze %s: cannot write its deadline: %w", id, err)
	}
	if err := g.gate.Freeze(ctx, id); err != nil {
		return err // the deadline stays: some may be frozen until the caller thaws
	}
	// gpushare-thaw may have let go of its lock since it was looked at. It looks at all deadlines once more after that:
	// either it saw ours, or we see now that it is gone.
	if err := g.Ready(); err != nil {
		return errors.Join(fmt.Errorf("cannot freeze %s: %w", id, err), g.Thaw(context.WithoutCancel(ctx), id))
	}
	return nil
}

// Thaw continues the scope's processes.
func (g *Guard) Thaw(ctx context.Context, id string) error {
	if err := g.gate.Thaw(ctx, id); err != nil {
		return err
	}
	g.mu.Lock()
	name, ok := g.files[id]
	delete(g.files, id)
	g.mu.Unlock()
	if !ok {
		return nil
	}
	return g.remove(name)
}

// promise writes the scope's deadline and removes the one before.
func (g *Guard) promise(id string, d deadline) error {
	name, err := d.write(g.dir, id)
	if err != nil {
		return err
	}
	g.mu.Lock()
	old, ok := g.files[id]
	g.files[id] = name
	g.mu.Unlock()
	if !ok || old == name {
		return nil
	}
	return g.remove(old)
}

func (g *Guard) remove(name string) error {
	if err := os.Remove(filepath.Join(g.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the deadline %s: %w", name, err)
	}
	return nil
}

// Frozen reads back whether the scope's processes are stopped.
func (g *Guard) Frozen(id string) (bool, error) { return g.gate.Frozen(id) }
