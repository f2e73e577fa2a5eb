package stop

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/procfs"
)

// Processes are processes that stay where they are. They are never frozen: that would stop a login or a service of
// somebody else's with them. Close them.
type Processes struct {
	held []*procfs.Pidfd
	mine func(pid int) bool                                 // asked again before each signal; nil: they are whatever becomes of them
	find func(ctx context.Context) ([]*procfs.Pidfd, error) // who it is, when SIGTERM is due; nil: those who are held
}

// Hold makes processes that are held something to be stopped.
func Hold(held ...*procfs.Pidfd) *Processes { return &Processes{held: held} }

// Close lets go of the processes.
func (p *Processes) Close() {
	for _, h := range p.held {
		_ = h.Close() // Nothing is written through it.
	}
}

// Thaw does nothing: they are never frozen.
func (p *Processes) Thaw(context.Context) error { return nil }

// Drain does nothing, for the same reason.
func (p *Processes) Drain(context.Context) {}

// Terminate sends SIGTERM to each.
func (p *Processes) Terminate(ctx context.Context) error {
	if p.find != nil && p.held == nil {
		var err error
		if p.held, err = p.find(ctx); err != nil {
			return err
		}
	}
	return p.signal(unix.SIGTERM)
}

// Wait returns nil when all have ended.
func (p *Processes) Wait(ctx context.Context) error {
	for _, h := range p.held {
		if err := h.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Kill sends SIGKILL to those who have not ended.
func (p *Processes) Kill(ctx context.Context) error {
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	dead, cancel := context.WithTimeout(ctx, WallTimeout)
	defer cancel()
	for _, h := range p.held {
		if !p.isMine(h) {
			continue
		}
		if err := h.Wait(dead); err != nil {
			return fmt.Errorf("process %d was killed and does not end: it hangs in the kernel, often in the driver: %w", h.PID(), err)
		}
	}
	return nil
}

func (p *Processes) signal(sig unix.Signal) error {
	var failed error
	for _, h := range p.held {
		if h.Ended() || !p.isMine(h) {
			continue
		}
		if err := h.Signal(sig); err != nil && !errors.Is(err, procfs.ErrGone) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (p *Processes) isMine(h *procfs.Pidfd) bool { return p.mine == nil || p.mine(h.PID()) }
