package cgroup

import (
	"context"
	"errors"
	"path"
	"time"
)

const (
	// supervisorTimeout is how long the supervisor of a program may write, after the last process of its scope has ended, what
	// that has printed and how it ended. It needs a few milliseconds. Then it is killed: it is a process of root, and must not
	// outlive the lease that it was started for.
	supervisorTimeout = 5 * time.Second
	// supervisorKillTimeout is for its end after that.
	supervisorKillTimeout = time.Second
)

// endSupervisor waits until the supervisor of an empty scope has ended, and kills it at a time. A scope without one is no error.
// It does not kill when ctx ends: the supervisor ends by itself, and the next NewTree removes what is left.
func (t *Tree) endSupervisor(ctx context.Context, scope string, at time.Time) error {
	cg := path.Join(scope, supervising)
	ending, cancel := context.WithDeadline(ctx, at)
	defer cancel()
	err := t.h.WaitEmpty(ending, cg)
	switch {
	case err == nil || errors.Is(err, ErrNotFound):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case ending.Err() == nil:
		return err
	}
	killing, cancel := context.WithTimeout(ctx, supervisorKillTimeout)
	defer cancel()
	if err := t.h.Kill(killing, cg); err != nil && killing.Err() == nil {
		return err
	}
	return ctx.Err() // One that waits for a disk ends when that answers. The lease does not wait for it.
}
