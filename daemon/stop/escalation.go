package stop

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// IsolationTimeout bounds the walling in of one process, and the wait for the end of one that was killed.
const IsolationTimeout = 15 * time.Second

// StopGrace is the time between SIGTERM and SIGKILL of what is stopped by name.
const StopGrace = 10 * time.Second

// Target is what a ladder stops: all processes of a scope of ours, or processes that stay where they are.
type Target interface {
	// Thaw lets it run, so that SIGTERM reaches it.
	Thaw(ctx context.Context) error
	// Terminate sends SIGTERM to each of its processes. What has ended is no error.
	Terminate(ctx context.Context) error
	// Wait returns nil when none of the processes lives.
	Wait(ctx context.Context) error
	// AwaitBacklog freezes it where it can be frozen, and lets the work run out that it has queued on a GPU.
	AwaitBacklog(ctx context.Context)
	// Kill sends SIGKILL and returns when none of the processes lives.
	Kill(ctx context.Context) error
}

// Escalation stops processes, stage after stage: notify, thaw, SIGTERM, grace, drain, SIGKILL, and a look that they are gone.
// Everything that is stopped is stopped by one, but for processes that left their lease.
type Escalation struct {
	Target     Target
	Notify     func(ctx context.Context) // tells those concerned before anything is done; nil where they know
	terminated bool
}

// Run goes through all stages, and returns when the processes are gone. If ctx ends before the grace is over nobody is
// killed.
func (l *Escalation) Run(ctx context.Context, grace time.Duration) error {
	if err := l.Terminate(ctx); err != nil {
		return err
	}
	graceCtx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if l.Target.Wait(graceCtx) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot wait for its end: %w", err)
	}
	return l.Kill(ctx)
}

// Terminate goes up to SIGTERM, for those who measure the grace themselves.
func (l *Escalation) Terminate(ctx context.Context) error {
	if l.Notify != nil {
		l.Notify(ctx)
	}
	if err := l.Target.Thaw(ctx); err != nil {
		return fmt.Errorf("cannot thaw it: %w", err)
	}
	if err := l.Target.Terminate(ctx); err != nil {
		return err
	}
	l.terminated = true
	return nil
}

// Terminated tells whether SIGTERM was delivered.
func (l *Escalation) Terminated() bool { return l.terminated }

// ErrNotTerminated says that a process got no SIGTERM, without which it gets no SIGKILL.
var ErrNotTerminated = errors.New("it was not asked to end")

// Kill goes on where Ask ended.
func (l *Escalation) Kill(ctx context.Context) error {
	if !l.terminated {
		return fmt.Errorf("cannot kill it: %w", ErrNotTerminated)
	}
	l.Target.AwaitBacklog(ctx)
	return l.Target.Kill(ctx)
}
