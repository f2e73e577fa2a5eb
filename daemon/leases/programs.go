package leases

import (
	"context"
	"io"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/lease"
)

// Programs starts the commands of leases that nobody waits for, and knows what became of them. They are nobody's
// children and outlive us.
type Programs interface {
	// Start starts what waits for the word, behind the walls of the scope. Without walls, on a node that only observes, it
	// is only followed.
	Start(ctx context.Context, s cgroup.Scope, isolated bool) (cgroup.ScopeState, *launch.Pending, error)
	// Main is the process that the word was for, found again after a restart; the zero one when it has ended.
	Main(ctx context.Context, id string) (lease.Process, error)
	// Result tells how it ended, once: what the service manager kept of it is let go. launch.ErrUnknown when nobody saw it.
	Result(ctx context.Context, id string) (launch.Result, error)
}

// Outputs keep what the commands of those leases print.
type Outputs interface {
	// Output copies what it printed; see launch.Keepers.Output.
	Output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error
	// Note puts a line of ours among what it printed.
	Note(l *lease.Lease, line string) error
	// Sweep drops what was kept of leases that nobody asks for any more.
	Sweep(wanted func(id string) bool)
}
