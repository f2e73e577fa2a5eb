package stop

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Processes are processes that are leased in place, or of no lease. They are never frozen: that could stop a login or a
// service of another user with them. The caller closes them.
type Processes struct {
	pidfds  []*procfs.Pidfd
	belongs func(pid int) bool                                 // checked again before each signal; nil: always
	find    func(ctx context.Context) ([]*procfs.Pidfd, error) // finds them when SIGTERM is due; nil: those in pidfds
	watcher watcher
	// whole kills the cgroup that has all of them and no other, where a security module refuses SIGKILL; nil: there is none.
	whole func(ctx context.Context) error
}

// NewProcesses returns the processes of these descriptors as a target.
func NewProcesses(pidfds ...*procfs.Pidfd) *Processes { return &Processes{pidfds: pidfds} }

// Close closes the descriptors.
func (p *Processes) Close() {
	for _, h := range p.pidfds {
		_ = h.Close() // Nothing is written through it.
	}
}

// Ended reports whether none of them is a process any more that a signal would reach.
func (p *Processes) Ended() bool {
	return !slices.ContainsFunc(p.pidfds, func(h *procfs.Pidfd) bool { return !h.Ended() && p.stillBelongs(h) })
}

// Thaw does nothing: they are never frozen.
func (p *Processes) Thaw(context.Context) error { return nil }

// AwaitBacklog does nothing, for the same reason.
func (p *Processes) AwaitBacklog(context.Context) {}

// Terminate sends SIGTERM to each process, and continues it if it is stopped.
func (p *Processes) Terminate(ctx context.Context) error {
	if p.find != nil && p.pidfds == nil {
		var err error
		if p.pidfds, err = p.find(ctx); err != nil {
			return err
		}
	}
	return p.signal(func(h *procfs.Pidfd) error { return h.Terminate(ctx) })
}

// Wait returns nil when all have exited.
func (p *Processes) Wait(ctx context.Context) error {
	for _, h := range p.pidfds {
		if err := h.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Kill sends SIGKILL to those that have not exited, and stops the tracers that keep them.
func (p *Processes) Kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, IsolationTimeout)
	defer cancel()
	return p.KillWithin(ctx)
}

// KillWithin is Kill, and returns when ctx ends.
func (p *Processes) KillWithin(ctx context.Context) error {
	return (&tracers{watcher: p.watcher}).untilEnded(ctx, func(ctx context.Context) error {
		if err := p.orWhole(ctx, p.signal(func(h *procfs.Pidfd) error { return h.Signal(ctx, unix.SIGKILL) })); err != nil {
			return err
		}
		for _, h := range p.pidfds {
			if !p.stillBelongs(h) {
				continue
			}
			if err := h.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}, p.living)
}

// orWhole kills the whole cgroup where the kill of single processes was refused, for which the kernel asks no security module.
func (p *Processes) orWhole(ctx context.Context, err error) error {
	if err == nil || p.whole == nil || !onlyRefused(err) {
		return err
	}
	return p.whole(ctx)
}

// living lists those that have not exited.
func (p *Processes) living() []cgroup.Process {
	var out []cgroup.Process
	for _, h := range p.pidfds {
		start, err := procfs.Start(h.PID())
		// A process that has not exited is the one that this pid was when its start was read.
		if err == nil && !h.Ended() && p.stillBelongs(h) {
			out = append(out, cgroup.Process{PID: h.PID(), Start: start})
		}
	}
	return out
}

func (p *Processes) signal(send func(*procfs.Pidfd) error) error {
	var failed error
	for _, h := range p.pidfds {
		if h.Ended() || !p.stillBelongs(h) {
			continue
		}
		if err := send(h); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (p *Processes) stillBelongs(h *procfs.Pidfd) bool { return p.belongs == nil || p.belongs(h.PID()) }
