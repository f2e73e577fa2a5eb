package stop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
)

const (
	// backlogWait is how long the queued kernels of a frozen lease may run before it is killed.
	backlogWait = 500 * time.Millisecond
	// freezeTimeout bounds the freeze before that. A scope that does not freeze is killed while it runs.
	freezeTimeout = time.Second
	// thawTimeout bounds the thaw before SIGTERM. It needs microseconds, unless another program has frozen a parent cgroup.
	thawTimeout = 5 * time.Second
)

// scope is all processes of a lease in a scope of gpushare.
type scope struct {
	port    cgroup.Port
	freezer freezer // nil if nothing can be frozen
	id      string
	log     *slog.Logger
	watcher watcher
}

// Thaw lets the scope's processes run, and no policy freezes them from then on.
func (s *scope) Thaw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, thawTimeout)
	defer cancel()
	var err error
	if s.freezer != nil {
		err = s.freezer.Stopping(ctx, s.id)
	} else {
		err = s.port.Thaw(ctx, s.id)
	}
	if errors.Is(err, cgroup.ErrNotFound) || errors.Is(err, cgroup.ErrNotSupported) {
		return nil
	}
	return err
}

// Terminate sends SIGTERM to every process by its pidfd, which cannot refer to another process, and continues it if it is stopped.
func (s *scope) Terminate(ctx context.Context) error {
	members, err := s.port.Members(ctx, s.id)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot list its processes: %w", err)
	}
	var failed error
	for _, m := range members {
		p, err := procfs.OpenPidfd(m.PID, m.Start)
		if err != nil {
			continue // It exited.
		}
		if leaseID, ok := s.port.ScopeOf(m.PID); ok && leaseID == s.id {
			if err := p.Terminate(ctx); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
				failed = errors.Join(failed, err)
			}
		}
		_ = p.Close() // Nothing is written through it.
	}
	return failed
}

// Wait returns nil when the scope is empty or was removed.
func (s *scope) Wait(ctx context.Context) error {
	err := s.port.WaitEmpty(ctx, s.id)
	if errors.Is(err, cgroup.ErrNotFound) || errors.Is(err, cgroup.ErrOutOfMemory) {
		return nil
	}
	return err
}

// AwaitBacklog freezes the scope and waits: killing a process while its GPU kernel runs can hang the driver. If the
// scope cannot be frozen it is killed all the same.
func (s *scope) AwaitBacklog(ctx context.Context) {
	if s.freezer == nil {
		return
	}
	frozen, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	if err := s.freezer.Freeze(frozen, s.id, cgroup.ForStop, freezeTimeout+backlogWait); err != nil {
		s.log.Debug("a lease is killed while it runs: it cannot be frozen", "lease", s.id, "error", err)
		return
	}
	loop.Pause(ctx, backlogWait)
}

// Kill kills what is left in the scope, frozen or not, and the tracers that keep it.
func (s *scope) Kill(ctx context.Context) error {
	err := killScope(ctx, s.port, s.id, s.watcher)
	if s.freezer != nil {
		// No process is left to thaw, but this removes the deadline of the freeze from disk. If a process is left, it
		// must not stay frozen.
		if err := s.freezer.Thaw(context.WithoutCancel(ctx), s.id, cgroup.ForStop); err != nil && !errors.Is(err, cgroup.ErrNotFound) {
			s.log.Debug("a lease that was killed cannot be thawed", "lease", s.id, "error", err)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot kill it: %w", err)
	}
	return nil
}

// killScope kills the processes of a scope and the tracers that keep them, and waits for their end.
func killScope(ctx context.Context, port cgroup.Port, id string, w watcher) error {
	ctx, cancel := context.WithTimeout(ctx, IsolationTimeout)
	defer cancel()
	return (&tracers{watcher: w}).untilEnded(
		ctx,
		func(ctx context.Context) error { return port.KillScope(ctx, id) },
		func() []cgroup.Process {
			members, err := port.Members(ctx, id)
			if err != nil {
				return nil // The next kill has the error.
			}
			return members
		},
	)
}
