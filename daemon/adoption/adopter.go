package adoption

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Adopter adopts logins and units, and finds containers.
type Adopter struct {
	*report.Reporter
	State       *state.State
	RunDir      store.RunDir
	Observer    *observe.Observer
	Port        cgroup.Port
	Hierarchy   func() (cgroup.Hierarchy, error) // finds the cgroup hierarchy
	Attachments *cgroup.Attachments
	Table       *lease.Table
	Identities  *server.Identities
	Sessions    SessionSource
	// SampleInterval is the time between two searches for containers.
	SampleInterval func() time.Duration
	Wake           func()
	Attribution    *attribution.Attribution
	Policy         *devicepolicy.Policy
	Leases         leaseWatcher

	Adoption   Adoption
	containers containers
	perLogin   loginLimits // guarded by Adoption.mu, except shown
}

// leaseWatcher ends leases when their last process has exited.
type leaseWatcher interface{ WatchLease(id string) }

// Run adopts logins, units and containers until ctx ends, and returns when its loops have ended.
func (a *Adopter) Run(ctx context.Context) {
	var loops loop.Group
	loops.Go(func() { a.adoptLoop(ctx) })
	loops.Go(func() { a.containerLoop(ctx) })
	loops.Wait()
}
