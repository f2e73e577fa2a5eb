package leases

import (
	"context"
	"errors"
	"time"

	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/lease"
)

// resultTimeout bounds the query of a command's result.
const resultTimeout = 5 * time.Second

// recordResult reads the result of the command, immediately before its lease ends.
func (ls *Leases) recordResult(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, resultTimeout)
	defer cancel()
	r, err := ls.Detached.Programs.Result(ctx, id)
	switch {
	case err == nil:
		ls.Ended.result(id, r)
	case !errors.Is(err, launch.ErrUnknown):
		ls.Log.Warn("cannot read the result of a command", "lease", id, "error", err)
	}
}

// findProgram finds the process of a detached lease after a restart.
func (ls *Leases) findProgram(ctx context.Context, l *lease.Lease) {
	p, err := ls.Detached.Programs.Main(ctx, l.ID)
	if err == nil && p.PID != 0 {
		l.Process = p
	}
}

// endText returns the text of the event for the end of a lease: how its command ended, or the text otherwise if that is not known.
func (ls *Leases) endText(id, otherwise string) string {
	if e, ok := ls.Ended.get(id); ok && e.Result != nil {
		return "the command " + e.Result.String()
	}
	return otherwise
}
