package instanceuse

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
)

const (
	// interval is the time between two readings of a GPU: that in which the account finds a lease idle or busy.
	interval = usage.Window
	// timeout limits one reading: two short calls for each instance.
	timeout = time.Second
	// staleAfter is how old a reading may be that is shown.
	staleAfter = 3 * interval
	// leastBusy is the error of a reading, as a part of the time: what an idle context makes is no work.
	leastBusy = 0.01
)

// Watch reads how MIG instances are used.
type Watch struct {
	*report.Reporter
	Driver   reader
	Observed func() *observe.Node
	Live     func() []lease.Lease
	// EndedLately returns the leases that ended no longer ago than d; nil: they are not known.
	EndedLately func(d time.Duration) []lease.Lease
	// LeaseLookup finds the leases of about so many processes.
	LeaseLookup func(about int) func(pid int) (id string, ok bool)
	Recorder    recorder

	refused  map[gpu.UUID]refusal // GPUs that have no counters; used by the loop only
	occupied map[key]occupants    // by whom, at the last reading; used by the loop only

	mu   locks.Mutex[locks.Leaf] // guards what follows
	uses map[key]reading
	why  map[gpu.UUID]string // why a GPU has no readings
}

type reader interface {
	InstanceUse(ctx context.Context, id gpu.UUID, instances []uint32) ([]gpu.InstanceUse, error)
}

type recorder interface {
	Record(i usage.Interval)
}

// key is a GPU instance.
type key struct {
	gpu gpu.UUID
	gi  uint32
}

// reading is how an instance was used.
type reading struct {
	use   api.InstanceUse
	lease string // that had it alone for the whole interval; empty: none had, or others may have used it too
}

// refusal is that a GPU has no counters, with the driver that says so: another one may have them.
type refusal struct{ epoch observe.Epoch }

// Run reads until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	for {
		w.pass(ctx, w.Observed())
		if !loop.Every(ctx, interval) {
			return
		}
	}
}

// pass reads the GPUs that have instances, and forgets what is not read any more.
func (w *Watch) pass(ctx context.Context, node *observe.Node) {
	known := map[gpu.UUID]bool{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if !g.MIG.Current || len(g.Instances) == 0 {
			continue // Nor are there samples of it: without instances nothing is asked.
		}
		known[id] = true
		if g.Err == nil && node.DriverErr == nil && w.refused[id] != (refusal{node.Epoch}) {
			w.read(ctx, node, g)
		}
	}
	maps.DeleteFunc(w.occupied, func(k key, _ occupants) bool { return !known[k.gpu] })
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.why {
		if !known[id] {
			delete(w.why, id)
		}
	}
	for k := range w.uses {
		if !known[k.gpu] || w.Now().Sub(w.uses[k].use.ReadAt) > staleAfter {
			delete(w.uses, k)
		}
	}
}

// read reads the instances of one GPU.
func (w *Watch) read(ctx context.Context, node *observe.Node, g *observe.GPU) {
	id := g.Identity.UUID
	instances := make([]uint32, len(g.Instances))
	for i := range g.Instances {
		instances[i] = g.Instances[i].ID
	}
	within, cancel := context.WithTimeout(ctx, timeout)
	uses, err := w.Driver.InstanceUse(within, id, instances)
	cancel()
	if ctx.Err() != nil {
		return
	}
	at, shown := time.Now(), w.Now()
	if gpu.IsAny(err, gpu.ErrMissing, gpu.ErrNotSupported) {
		if w.refused == nil {
			w.refused = map[gpu.UUID]refusal{}
		}
		w.refused[id] = refusal{node.Epoch} // It is not asked again.
	}
	alone := w.account(g, uses, at)
	w.mu.Lock()
	if w.uses == nil {
		w.uses, w.why = map[key]reading{}, map[gpu.UUID]string{}
	}
	w.why[id] = reason(err)
	for i := range uses {
		u := &uses[i]
		w.uses[key{id, u.GI}] = reading{lease: alone[u.GI], use: api.InstanceUse{
			Busy: u.Busy, Multiprocessors: u.SM, MemoryBandwidth: u.Memory, IntervalSeconds: u.Length.Seconds(), ReadAt: shown,
		}}
	}
	w.mu.Unlock()
	if len(uses) > 0 {
		w.Invalidate()
	}
}

// reason is why a GPU has no readings; empty if it has.
func reason(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, gpu.ErrNotSupported):
		return "this GPU does not count the use of MIG instances: it is older than Hopper, or its driver does not"
	case errors.Is(err, gpu.ErrMissing):
		return "this driver does not report the use of MIG instances"
	}
	return "the use of MIG instances cannot be read: " + err.Error()
}

// Of returns how an instance was used lately, and the lease that had it alone for the whole interval, so that all of it is its use. The
// use is nil if it is not known; the lease is empty if there was none, or if others may have used the instance too.
func (w *Watch) Of(id gpu.UUID, gi uint32) (use *api.InstanceUse, lease string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u, ok := w.uses[key{id, gi}]
	if !ok || w.Now().Sub(u.use.ReadAt) > staleAfter {
		return nil, ""
	}
	return &u.use, u.lease
}

// Unmeasured is why it is not known how the instances of a GPU are used; empty if it is, or was not read yet.
func (w *Watch) Unmeasured(id gpu.UUID) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why[id]
}
