package leases

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Leases starts, stops and recovers leases.
type Leases struct {
	*report.Reporter
	State       *state.State
	RunDir      store.RunDir
	recorded    atomic.Bool // there is a record of the leases: it was written, or read
	Tasks       *loop.Group
	WorkerPID   func() int // of the NVML worker; 0 when none runs
	Observer    *observe.Observer
	Port        cgroup.Port
	Follow      *cgroup.Processes
	Attachments *cgroup.Attachments
	Table       *lease.Table
	Identities  *server.Identities
	Wake        func()
	// ConvergeInterval is how often the node is observed; nil: every minute.
	ConvergeInterval func() time.Duration
	Attribution      *attribution.Attribution
	Stopper          *stop.Stopper
	Policy           *devicepolicy.Policy
	Escapes          escapeTracker
	Memory           memoryLimits

	LeaseChanges *stop.LeaseChanges
	Ended        endedLeases
	Notices      chan QueuedNotice // on their way to terminals
	Detached     Detached
	TimeWake     loop.Wake                    // a lease started or ended, or is to be stopped for a request
	inPlaceMu    locks.Mutex[locks.Attaching] // one check and one start of a lease in place at a time
	Watchers     Watchers
	stops        stops
	Revised      loop.Wake // what is recorded of a running lease changed: its notices, its XIDs
}

// Run ends leases whose max_time has passed or whose users may not have them any more, and delivers notices until ctx ends, and returns
// when its loops have ended.
func (ls *Leases) Run(ctx context.Context) {
	ls.resumeEnds()
	var loops loop.Group
	loops.Go(func() { ls.timeLoop(ctx) })
	loops.Go(func() { ls.noticeLoop(ctx) })
	loops.Go(func() { ls.listen(ctx) })
	loops.Go(func() { ls.outputLoop(ctx) })
	loops.Go(func() { ls.recheckLoop(ctx) })
	loops.Go(func() { ls.removalLoop(ctx) })
	loops.Go(func() { ls.saveLoop(ctx) })
	loops.Wait()
}

// Detached starts the commands of detached leases and keeps their output.
type Detached struct {
	Programs Programs
	Outputs  Outputs
	pending  pendingPrograms
}

// memoryLimits limits the GPU memory of the cgroups of leases.
type memoryLimits interface {
	Prepare(ctx context.Context, l *lease.Lease) error
	Begin(ctx context.Context, l *lease.Lease, cgroup string) error
	End(ctx context.Context, l *lease.Lease)
	// Describe sets what enforces the limit of a lease.
	Describe(l *lease.Lease, out *api.LeaseMemory)
}

// escapeTracker finds processes that leave their lease.
type escapeTracker interface {
	// Record records a process and its descendants as those of a lease, before it enters the scope. undo takes that back.
	Record(leaseID string, pid int) (undo func() error, err error)
	// Note starts to track a lease.
	Note(l *lease.Lease)
}
