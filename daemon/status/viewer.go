package status

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/power"
	"github.com/gpushare/gpushare/quota"
)

// workerState reports the state of the NVML worker.
type workerState interface {
	Status() worker.Status
	Stats() worker.Stats
}

// UnitState reports whether a unit is active.
type UnitState interface {
	UnitActive(ctx context.Context, unit string) (bool, error)
}

// Viewer answers the requests that only read.
type Viewer struct {
	*report.Reporter
	StateDir     string
	HostRoot     string
	Host         string
	State        *state.State
	Driver       workerState
	Observer     *observe.Observer
	Port         cgroup.Port
	Table        *lease.Table
	Samples      *observe.Samples
	Identities   *server.Identities
	Logins       *devicepolicy.LoginFilter
	LimitsLogins bool      // logins can be limited on this host
	Services     UnitState // nil without systemd
	Freezer      freezer   // nil: nothing can be frozen
	FreezerReady func() error
	JobFrozen    func(id string) (bool, error) // reads back whether a lease that is a job of an engine is frozen
	Files        files
	Unconfined   func(worker int) []api.Check // what the kernel does not enforce for the processes of the daemon; nil: not known
	Attribution  *attribution.Attribution
	Policy       *devicepolicy.Policy
	Managers     Managers
	Power        powerCaps
	MPS          controlDaemons

	rendered renderCache
}

// powerCaps plans the limits of power.
type powerCaps interface {
	Plan(ctx context.Context, targets []power.Target, fresh bool) power.Plan
}

// controlDaemons are those of MPS.
type controlDaemons interface {
	// Ended counts those that have ended. It reads no file.
	Ended() uint64
	// Reread makes the next observation of a device read its clients.
	Reread(on mps.Device)
	LastLines(ctx context.Context, on mps.Device, n int) []string
}

// freezer says why a lease is frozen.
type freezer interface {
	Reasons(id string) []cgroup.FreezeReason
}

// Managers is what the viewer reads from the managers.
type Managers struct {
	Adoption interface {
		LoginsLimited(tenant string, limit uint64) int
	}
	Converge interface {
		LastDrift() (at time.Time, text string)
		UpdateShares()
	}
	Instances interface {
		IdleSince(id gpu.UUID, at gpu.Placement, generation uint64) (time.Time, bool)
	}
	Enforce interface {
		Fill(l *api.Lease, enforced bool)
		TimeSlices(id gpu.UUID) *api.TimeSlices
		FrozenTenant(name string) *api.TenantFreeze
		Overuse(l *lease.Lease) quota.OverusePolicy
		TemperatureRule(id string) *api.Rule
	}
	Memory interface {
		Choice(l *lease.Lease) quota.MemoryChoice
		GrantChoice(t *api.TenantSpec, g *api.GrantSpec, id gpu.UUID) quota.MemoryChoice
	}
	Leases interface {
		EndedLeases() []api.Lease
	}
	Health interface {
		Status(id gpu.UUID) *api.GPUHealth
		// Sensors are the last ones; ReadSensors reads them for someone who looks now.
		Sensors(id gpu.UUID) *api.Sensors
		ReadSensors(ctx context.Context)
		// LogError is why the kernel's log cannot be read; nil if it can.
		LogError() error
	}
	Acknowledge interface {
		Annotate(list []api.Condition) []api.Condition
	}
	Account interface {
		Fill(l *api.Lease)
		EndedLeases(ctx context.Context, since string, sees func(tenant string, uid int) bool) ([]api.Lease, error)
		// IdleOn and IdleOutside return for how long a lease, or a user outside of leases, was seen idle on a GPU; known: it was measured.
		IdleOn(id string, generation uint64, on gpu.UUID) (idle time.Duration, known bool)
		IdleOutside(user string, on gpu.UUID) (idle time.Duration, known bool)
	}
	// InstanceUse is how MIG instances are used, as far as the driver reports it, and by which lease alone.
	InstanceUse interface {
		Of(id gpu.UUID, gi uint32) (use *api.InstanceUse, lease string)
		// Unmeasured is why that is not known of the instances of a GPU.
		Unmeasured(id gpu.UUID) string
	}
	// Outside returns who uses GPUs outside of leases.
	Outside func() []OutsideUse
}

// files compares the files of the daemon with their names.
type files interface {
	Check(ctx context.Context)
}
