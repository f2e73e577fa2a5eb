package stop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/internal/terminal"
)

// Process ends a process of no lease the polite way, and returns when it has ended. It is never frozen, because its cgroup
// is not ours. What is not that process any more has ended.
func (s *Stopper) Process(ctx context.Context, pid int, start uint64, name, gpu, reason string) error {
	p, err := procfs.OpenPidfd(pid, start)
	if errors.Is(err, procfs.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	// Only now that it is held does this say whose it is: leases are ended by their own steps.
	if id, held := s.Attribution.OwnerOf(pid); held {
		return fmt.Errorf("cannot stop pid %d (%s): it came into lease %s meanwhile", pid, name, id)
	}
	text := fmt.Sprintf("process %d (%s) is stopped: %s", pid, name, reason)
	s.Events.Publish(api.Event{Kind: "process.stopping", GPU: gpu, Message: text})
	s.Audit("gpushared", "force", text)
	if uid, err := procfs.UID(pid); err == nil {
		terminal.Tell([]int{pid}, int(uid), "gpushare: "+text)
	}
	return EndPolitely(ctx, p, StopGrace)
}

// EndPolitely asks a process to end, kills it when it has not after the grace, and returns when it has ended.
func EndPolitely(ctx context.Context, p *procfs.Pidfd, grace time.Duration) error {
	err := p.Signal(unix.SIGTERM)
	if errors.Is(err, procfs.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if p.Wait(patience) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot wait for the end of process %d: %w", p.PID(), err)
	}
	if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, procfs.ErrGone) {
		return err
	}
	dead, cancel := context.WithTimeout(ctx, WallTimeout)
	defer cancel()
	if err := p.Wait(dead); err != nil {
		return fmt.Errorf("process %d was killed and does not end: it hangs in the kernel, often in the driver: %w", p.PID(), err)
	}
	return nil
}
