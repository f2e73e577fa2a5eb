package stop

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// WallTimeout bounds the walling in of one process, and the wait for the end of one that was killed.
const WallTimeout = 15 * time.Second

// StopGrace is the time between SIGTERM and SIGKILL of what is stopped by name.
const StopGrace = 10 * time.Second

// Stoppable is what a ladder stops: all processes of a scope of ours, or processes that stay where they are.
type Stoppable interface {
	// Thaw lets it run, so that SIGTERM reaches it.
	Thaw(ctx context.Context) error
	// Terminate sends SIGTERM to each of its processes. What has ended is no error.
	Terminate(ctx context.Context) error
	// Wait returns nil when none of the processes lives.
	Wait(ctx context.Context) error
	// Drain freezes it where it can be frozen, and lets the work run out that it has queued on a GPU.
	Drain(ctx context.Context)
	// Kill sends SIGKILL and returns when none of the processes lives.
	Kill(ctx context.Context) error
}

// Ladder stops processes, stage after stage: notify, thaw, SIGTERM, grace, drain, SIGKILL, and a look that they are gone.
// Everything that is stopped is stopped by one, but for processes that left their lease.
type Ladder struct {
	Of     Stoppable
	Notify func(ctx context.Context) // tells those concerned before anything is done; nil where they know
	asked  bool
}

// Climb goes through all stages, and returns when the processes are gone. If ctx ends before the grace is over nobody is
// killed.
func (l *Ladder) Climb(ctx context.Context, grace time.Duration) error {
	if err := l.Ask(ctx); err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if l.Of.Wait(patience) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot wait for its end: %w", err)
	}
	return l.Kill(ctx)
}

// Ask goes up to SIGTERM, for those who measure the grace themselves.
func (l *Ladder) Ask(ctx context.Context) error {
	if l.Notify != nil {
		l.Notify(ctx)
	}
	if err := l.Of.Thaw(ctx); err != nil {
		return fmt.Errorf("cannot thaw it: %w", err)
	}
	if err := l.Of.Terminate(ctx); err != nil {
		return err
	}
	l.asked = true
	return nil
}

// Asked tells whether SIGTERM was delivered.
func (l *Ladder) Asked() bool { return l.asked }

// ErrNotAsked says that a process got no SIGTERM, without which it gets no SIGKILL.
var ErrNotAsked = errors.New("it was not asked to end")

// Kill goes on where Ask ended.
func (l *Ladder) Kill(ctx context.Context) error {
	if !l.asked {
		return fmt.Errorf("cannot kill it: %w", ErrNotAsked)
	}
	l.Of.Drain(ctx)
	return l.Of.Kill(ctx)
}
