package health

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/kernel/kernellog"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Health follows the GPUs of the node. Set the exported fields before the first use.
type Health struct {
	*report.Reporter
	State    *state.State
	Observed func() *observe.Node
	Driver   reader
	Lease    func(id string) (lease.Lease, bool)
	Live     func() []lease.Lease
	Leases   records
	// EndedLately returns the leases that ended no longer ago than d; nil: they are not known.
	EndedLately func(d time.Duration) []lease.Lease
	// LeaseLookup finds the leases of about so many processes.
	LeaseLookup func(about int) func(pid int) (id string, ok bool)
	// FollowLog calls f for each XID in the kernel's log until ctx ends or the log cannot be read; nil: there is no log.
	FollowLog func(ctx context.Context, f func(kernellog.Record)) error
	StateDir  store.RunDir // keeps the history of readings
	Admit     func()       // passes to the lease table which GPUs are closed
	Wake      func()       // the converge loop, after a GPU was closed or opened
	Heated    func()       // called after a reading of a GPU that is or was hot; may be nil

	Due     loop.Wake  // readings are due
	Arrived loop.Wake  // an XID waits for its pair
	tasks   loop.Group // one reading of each GPU, and one of its sensors

	mu      locks.Mutex[locks.Health] // guards what follows
	pairs   rules.Pairs
	gpus    map[gpu.UUID]*known
	members map[int]member // processes on GPUs, by pid
	noted   map[note]time.Time
	again   []transition // that could not be recorded
	logErr  error        // why the kernel's log cannot be read
	ended   bool         // no reading of sensors begins any more
}

// reader reads the sensors of a GPU.
type reader interface {
	Health(ctx context.Context, id gpu.UUID) (gpu.Health, error)
	Sensors(ctx context.Context, id gpu.UUID) (gpu.Sensors, error)
}

// records keeps what happened to a lease, also to one that has ended.
type records interface {
	// Note keeps a line for its user.
	Note(id string, n lease.Notice)
	RecordXID(id string, x api.LeaseXID)
	RetractXID(id string, x api.LeaseXID)
	// RecordLost records that one of its GPUs is lost, and reports whether that was not recorded.
	RecordLost(id string, g api.LostGPU) bool
	// RecordFound records for all leases that a GPU answers again.
	RecordFound(id gpu.UUID, at time.Time)
}

// known is what was read of one GPU.
type known struct {
	reading  chan struct{} // closed when the reading that is under way ends; nil: there is none
	last     *gpu.Health
	readAt   time.Time
	err      error // of the last reading
	findings []rules.Finding
	heat     rules.Heat
	history  rules.History
	sensors  sensed
}

const (
	// interval is the time between two readings of a GPU.
	interval = 10 * time.Second
	// spacing is the least time between two readings that XIDs request.
	spacing = time.Second
	// logRetry is when the kernel's log is tried again.
	logRetry = time.Minute
)

// Run follows the kernel's log and reads the GPUs until ctx ends, and returns when both have ended.
func (k *Health) Run(ctx context.Context) {
	k.loadHistory()
	defer k.saveHistory()
	var loops loop.Group
	loops.Go(func() { k.logLoop(ctx) })
	loops.Go(func() { k.reportLoop(ctx) })
	loops.Go(func() { k.readLoop(ctx) })
	loops.Wait()
	k.endSensing()
	k.tasks.Wait()
}

// ofLocked is what is known of a GPU.
func (k *Health) ofLocked(id gpu.UUID) *known {
	if k.gpus == nil {
		k.gpus = map[gpu.UUID]*known{}
	}
	if k.gpus[id] == nil {
		k.gpus[id] = &known{}
	}
	return k.gpus[id]
}
