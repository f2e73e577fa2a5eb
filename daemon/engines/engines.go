package engines

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// Engines registers keyed leases, binds them to their cgroups, and releases them.
type Engines struct {
	*report.Reporter
	Table      *lease.Table
	Observer   *observe.Observer
	Identities *server.Identities
	Policy     *devicepolicy.Policy
	Leases     lives
	Cgroups    cgroups
	Tasks      *loop.Group
	Wake       func() // of the converge loop
	// Hierarchy finds the cgroup hierarchy.
	Hierarchy func() (cgroup.Hierarchy, error)

	keys    keys
	waiters waiters
	naming  naming
}

// cgroups has what is done with the cgroups of leases.
type cgroups interface {
	// EngineCgroup checks a cgroup that an engine names: it belongs to root or to one of the uids. Without a process there it returns
	// none: the cgroup may come.
	EngineCgroup(name string, uids ...int) (cg string, p *cgroup.Process, err error)
	// SetCgroups gives a kept lease that runs the cgroups that next returns for the lease as it is now, and returns the lease.
	SetCgroups(ctx context.Context, id string, next func(now *lease.Lease) ([]string, error)) (lease.Lease, error)
	// CleanCgroup is the path of a cgroup as the leases have it.
	CleanCgroup(name string) (string, error)
}

// lives has the life of leases with processes.
type lives interface {
	// WatchLease ends the lease when its last process has exited.
	WatchLease(id string)
	// ReleaseAttached ends a lease. Its processes continue.
	ReleaseAttached(ctx context.Context, l *lease.Lease, reason string) error
	// EndedLease returns a lease that has ended, while it is kept.
	EndedLease(id string) (api.Lease, bool)
}

// Run waits for the cgroups of the leases that the previous run left, until ctx ends.
func (en *Engines) Run(ctx context.Context) {
	for _, l := range en.Table.Live() {
		if l.AwaitsCgroup() {
			en.await(l.ID)
		}
	}
	<-ctx.Done()
}

// startTimeout limits the start of a lease whose cgroup is there.
const startTimeout = 30 * time.Second

// start binds a lease to its processes. again: it was reported before, and waits again if it cannot be bound.
func (en *Engines) start(ctx context.Context, id string, p cgroup.Process, again bool) (lease.Lease, lease.IsolationResult, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	bind := en.Table.Start
	if again {
		bind = en.Table.Bind
	}
	l, result, err := bind(ctx, id, lease.Process(p))
	if err != nil {
		return l, result, err
	}
	en.Leases.WatchLease(l.ID)
	en.Events.Publish(l.Event("lease.started", "cgroup "+l.Cgroup+" was bound to "+l.Engine.Key))
	return l, result, nil
}
