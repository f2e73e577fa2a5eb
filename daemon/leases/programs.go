package leases

import (
	"context"
	"io"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/lease"
)

// Programs starts the commands of detached leases, and reads their results. They are not children of the daemon and
// outlive it.
type Programs interface {
	// Start starts a process in the scope that waits for its program. On a node that only observes, isolated is false
	// and the process is only followed. Of its output at most kept bytes are kept; the journal has a limit of its own.
	Start(ctx context.Context, s cgroup.Scope, isolated bool, kept int64) (cgroup.ScopeState, *launch.Pending, error)
	// Main finds the process of a command after a restart; the zero Process if it has exited.
	Main(ctx context.Context, id string) (lease.Process, error)
	// Result returns the result of a command, once: the service manager's record is then removed. launch.ErrUnknown if
	// there is none.
	Result(ctx context.Context, id string) (launch.Result, error)
	// Finish ends what still runs for the commands of leases that have ended, after a restart.
	Finish(ctx context.Context, ended func(id string) bool)
}

// Outputs keeps the output of detached commands.
type Outputs interface {
	// Output copies the output; see launch.Supervisors.Output.
	Output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error
	// Note adds a line of gpushare to the output.
	Note(l *lease.Lease, line string) error
	// Size is how many bytes of an output are kept outside the journal.
	Size(id string) int64
	// Prune removes the output of leases for which keep is false.
	Prune(keep func(id string) bool)
}
