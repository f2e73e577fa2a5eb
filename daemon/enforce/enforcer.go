package enforce

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// Enforcer carries out the quotas of GPU memory and GPU time, and pauses leases of hot GPUs.
type Enforcer struct {
	*report.Reporter
	State    *state.State
	Driver   gpu.Driver
	Observer *observe.Observer
	Freezer  freezer // freezes only while gpushare-thaw can thaw; nil: nothing can be frozen
	Jobs     jobs    // nil: no job of an engine is frozen
	Table    *lease.Table
	Samples  *observe.Samples
	// SampleInterval returns the longest time between two readings of a GPU's memory.
	SampleInterval func() time.Duration
	// ReadingTime returns how long readings of a GPU were inside the driver so far; nil: the waits for it are measured.
	ReadingTime func(gpu.UUID) time.Duration
	Attribution *attribution.Attribution
	Stopper     *stop.Stopper
	Leases      leaseStopper
	Recorder    Recorder // nil: no account is kept

	Wake    loop.Wake // a lease started: the next sample is due
	Shares  Shares
	Tenants FrozenTenants
	Cooling Cooling
	tasks   loop.Group // the loops of the GPUs, and what they started
	frozen  memoryFreezes
}

// Run samples and schedules GPU time until ctx ends. It returns when its loops have ended and no lease is frozen.
func (en *Enforcer) Run(ctx context.Context) {
	en.tasks.Begin(ctx)
	defer en.tasks.Wait()
	en.tasks.Go(func() { en.tenantLoop(ctx) })
	en.tasks.Go(func() { en.coolingLoop(ctx) })
	samplers := map[gpu.UUID]*sampler{}
	for {
		if _, ok := en.Wake.Every(ctx, en.SampleInterval()); !ok {
			return
		}
		en.assign(ctx, samplers)
	}
}

// leasesByGPU are the leases of each GPU that has some. They are counted first: a list that grows is copied several times, each second.
func leasesByGPU(live []lease.Lease) map[gpu.UUID][]lease.Lease {
	counts := map[gpu.UUID]int{}
	for i := range live {
		for _, id := range live[i].Place.GPUs {
			counts[id]++
		}
	}
	byGPU := make(map[gpu.UUID][]lease.Lease, len(counts))
	for i := range live {
		for _, id := range live[i].Place.GPUs {
			if byGPU[id] == nil {
				byGPU[id] = make([]lease.Lease, 0, counts[id])
			}
			byGPU[id] = append(byGPU[id], live[i])
		}
	}
	return byGPU
}

// assign gives each GPU with leases a loop with its leases, and ends the loops of the others. It calls no driver: a GPU that
// hangs delays no other.
func (en *Enforcer) assign(ctx context.Context, samplers map[gpu.UUID]*sampler) {
	live := en.Table.Live()
	byGPU, ids := leasesByGPU(live), make([]string, len(live))
	for i := range live {
		ids[i] = live[i].ID
	}
	en.Samples.Retain(ids, func(id gpu.UUID) bool { return byGPU[id] != nil })
	for id, s := range samplers {
		if byGPU[id] == nil {
			s.stop()
			delete(samplers, id)
		}
	}
	for id, leases := range byGPU {
		if samplers[id] == nil {
			samplers[id] = en.startSampler(ctx, id)
		}
		samplers[id].give(leases)
	}
	en.Shares.prune(en, byGPU)
	en.frozen.retain(ctx, en, ids)
}
