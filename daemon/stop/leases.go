package stop

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/procfs"
)

// WallTimeout bounds the walling in of one process.
const WallTimeout = 15 * time.Second

// StopGrace is the time between SIGTERM and SIGKILL of a lease that is stopped by name.
const StopGrace = 10 * time.Second

// Terminate sends SIGTERM to every process of a lease, by descriptors that cannot mean another process.
func (s *Stopper) Terminate(ctx context.Context, port cgroup.Port, id string) {
	members, err := port.Members(ctx, id)
	if err != nil {
		return // It is gone.
	}
	for _, m := range members {
		p, err := procfs.OpenPidfd(m.PID, m.Start)
		if err != nil {
			continue // It ended.
		}
		if owner, ok := port.Owner(m.PID); ok && owner == id {
			if err := p.Signal(unix.SIGTERM); err != nil {
				s.Log.Warn("cannot signal a process", "pid", m.PID, "lease", id, "error", err)
			}
		}
		_ = p.Close() // Nothing is written through it.
	}
}
