package escape

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// Escapes finds processes that left their lease, and processes that use a managed GPU without a lease.
type Escapes struct {
	*report.Reporter
	State     *state.State
	Driver    gpu.Driver
	WorkerPID func() int // of the NVML worker; 0 when none runs
	Observer  *observe.Observer
	Port      cgroup.Port
	Table     *lease.Table
	Samples   *observe.Samples
	Units     UnitFinder // nil without systemd
	// SampleInterval returns the time between two samples.
	SampleInterval func() time.Duration
	Attribution    *attribution.Attribution
	Descent        descentRecord // nil: escaped processes are found by looking only
	NoDescent      error         // why
	RecordBegins   bool          // it has nothing from before this daemon
	NotKept        error         // why it ends with this daemon; nil: it does not
	// FormerMounts lists the cgroup hierarchies of an earlier version that are mounted; nil: there were none at the start.
	FormerMounts func() ([]string, error)

	UserName func(uid int) string // nil: users are not named
	// Changed is called when a place was closed to leases, or opened again, because of a process of no lease. The lease table must know
	// it when it returns: a request that waits would be placed there, and its start refused.
	Changed func()

	Escaped  Escaped
	occupied occupants
}

// Run runs the searches until ctx ends, and returns when its loops have ended.
func (e *Escapes) Run(ctx context.Context) {
	var loops loop.Group
	loops.Go(func() { e.escapedLoop(ctx) })
	loops.Go(func() { e.unattributedLoop(ctx) })
	loops.Wait()
}

// UnitFinder finds the cgroups of units.
type UnitFinder interface {
	UnitCgroup(ctx context.Context, unit string) (string, error)
}
