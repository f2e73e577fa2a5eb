package stop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/faultpoint"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// IsolationTimeout bounds the isolation of one process, and the wait for the end of a process that was killed.
const IsolationTimeout = 15 * time.Second

// StopGrace is the usual time between SIGTERM and SIGKILL.
const StopGrace = 10 * time.Second

// Target is what is stopped: all processes of a scope of gpushare, or processes that are leased in place.
type Target interface {
	// Thaw lets the processes run, so that SIGTERM reaches them.
	Thaw(ctx context.Context) error
	// Terminate sends SIGTERM to each process. A process that has exited is no error.
	Terminate(ctx context.Context) error
	// Wait returns nil when all processes have exited.
	Wait(ctx context.Context) error
	// AwaitBacklog freezes the processes if possible, and waits for the work that they have queued on a GPU.
	AwaitBacklog(ctx context.Context)
	// Kill sends SIGKILL and returns when all processes have exited.
	Kill(ctx context.Context) error
}

// Escalation stops processes in stages: notify, thaw, SIGTERM, grace, wait for the backlog, SIGKILL, and the check that
// they have exited. All processes are stopped by one, except processes that left their lease.
type Escalation struct {
	Target     Target
	Notify     func(ctx context.Context) // informs the users before the first stage; nil if they know
	Refused    func(err error)           // reports that SIGTERM does not reach a process, because a security module refuses it; may be nil
	terminated bool
}

// Run goes through all stages, and returns when the processes have exited. If ctx ends before the grace is over no
// process is killed.
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

// Terminate goes up to SIGTERM, for callers that measure the grace themselves.
func (l *Escalation) Terminate(ctx context.Context) error {
	if l.Notify != nil {
		l.Notify(ctx)
	}
	if err := l.Target.Thaw(ctx); err != nil {
		return fmt.Errorf("cannot thaw it: %w", err)
	}
	faultpoint.Hit("stop.before-term")
	if err := l.Target.Terminate(ctx); err != nil {
		if !onlyRefused(err) {
			return err
		}
		// Otherwise it could never be stopped. It has its grace, and no security module refuses that the kernel kills a cgroup.
		if l.Refused != nil {
			l.Refused(err)
		}
	}
	faultpoint.Hit("stop.after-term")
	l.terminated = true
	return nil
}

// onlyRefused reports whether every error in err is the refusal of a security module.
func onlyRefused(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !onlyRefused(e) })
	}
	_, ok := errors.AsType[*procfs.RefusedError](err)
	return ok
}

// Terminated reports whether SIGTERM was sent, or refused.
func (l *Escalation) Terminated() bool { return l.terminated }

// ErrNotTerminated says that SIGTERM was not sent, without which SIGKILL is not sent.
var ErrNotTerminated = errors.New("SIGTERM was not sent to it")

// Kill continues after Terminate.
func (l *Escalation) Kill(ctx context.Context) error {
	if !l.terminated {
		return fmt.Errorf("cannot kill it: %w", ErrNotTerminated)
	}
	l.Target.AwaitBacklog(ctx)
	faultpoint.Hit("stop.before-kill")
	defer faultpoint.Hit("stop.after-kill")
	return l.Target.Kill(ctx)
}
