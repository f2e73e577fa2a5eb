package lease

import (
	"context"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Engine is what an engine said of a keyed lease. The lease gets its place at once, and its processes when their cgroup is there.
type Engine struct {
	Key     string      `json:"key"`
	Account string      `json:"account,omitempty"`
	Terms   EngineTerms `json:"terms"`
	BindBy  time.Time   `json:"bind_by"` // it ends then if it has no process
}

// EngineTerms are what the first request with a key named. What a second one names must be the same. What is empty was not named.
type EngineTerms struct {
	Tenant, Grant, Kind string
	User                string // as it was written
	Account             string
	GPUs                []string // by their UUIDs, as far as the node was read
	GPUsWritten         []string // as they were written
	Instance            string
	Own                 Own
	MaxTime             *api.Duration
}

// wire is what the API says of it.
func (l *Lease) engineWire() *api.LeaseEngine {
	if l.Engine == nil {
		return nil
	}
	w := &api.LeaseEngine{Key: l.Engine.Key, Account: l.Engine.Account, Bound: l.Process != (Process{})}
	if !w.Bound {
		w.BindBy = &l.Engine.BindBy
	}
	return w
}

// AwaitsCgroup reports whether the lease has its place and waits for its processes.
func (l *Lease) AwaitsCgroup() bool {
	return l.State == Placed && l.Engine != nil && l.Process == (Process{})
}

const (
	// keyRetention is for how long the key of a lease that has ended gets no new lease: a Prolog may be late.
	keyRetention = time.Hour
	// maxEndedKeys is how many of them are kept.
	maxEndedKeys = 1024
)

// EndedKey is the key of a lease that has ended.
type EndedKey struct {
	Key    string    `json:"key"`
	Lease  string    `json:"lease"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// Keyed returns the lease of a key that has a place.
func (t *Table) Keyed(key string) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.leases {
		if e.Engine != nil && e.Engine.Key == key {
			return t.copyLocked(&e.Lease), true
		}
	}
	return Lease{}, false
}

// KeyEnded returns how the lease of a key ended, while the key gets no new one.
func (t *Table) KeyEnded(key string) (EndedKey, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropOldKeysLocked()
	if i := slices.IndexFunc(t.endedKeys, func(k EndedKey) bool { return k.Key == key }); i >= 0 {
		return t.endedKeys[i], true
	}
	return EndedKey{}, false
}

// endKeyLocked keeps the key of a lease that ends. It is not kept of one that could not be started: the engine may try again.
func (t *Table) endKeyLocked(e *entry) {
	if e.Engine == nil {
		return
	}
	t.endedKeys = append(t.endedKeys, EndedKey{e.Engine.Key, e.ID, t.cfg.Now(), e.Reason})
	t.dropOldKeysLocked()
}

func (t *Table) dropOldKeysLocked() {
	since := t.cfg.Now().Add(-keyRetention)
	old := max(len(t.endedKeys)-maxEndedKeys, 0)
	for old < len(t.endedKeys) && t.endedKeys[old].At.Before(since) {
		old++
	}
	t.endedKeys = slices.Delete(t.endedKeys, 0, old)
}

// NameCgroup records where the processes of a lease will be. It is false if no such lease waits for a cgroup, or for another one.
func (t *Table) NameCgroup(id, cgroup string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.busy || !e.AwaitsCgroup() || e.Cgroup != "" && e.Cgroup != cgroup {
		return false
	}
	if e.Cgroup != cgroup {
		e.Cgroup = cgroup
		t.changedLocked(&e.Lease)
	}
	return true
}

// DropUnbound frees the place of a lease that has no process yet, and keeps its key. It is false if the lease does not wait.
func (t *Table) DropUnbound(ctx context.Context, id, reason string) (bool, error) {
	t.mu.Lock()
	e := t.leases[id]
	if e == nil || e.busy || !e.AwaitsCgroup() {
		t.mu.Unlock()
		return false, nil
	}
	e.Reason = reason
	t.endKeyLocked(e)
	t.removeLocked(e)
	t.evaluateLocked()
	t.mu.Unlock()
	return true, t.save(ctx)
}

// Record writes the table: a lease without processes is answered when it is recorded.
func (t *Table) Record(ctx context.Context) error { return t.save(ctx) }

// Chosen is the instance that an engine chose for a candidate.
type Chosen struct {
	placement gpu.Placement
	device    gpu.UUID // of the compute instance, if the instance is split; empty: all of it
	// onDemand: what begins at the memory slice, of any size. It is created if it is not there.
	onDemand bool
}

// allows reports whether a part of an instance is what was chosen; nil: nothing was.
func (c *Chosen) allows(in *InstanceView, device gpu.UUID) bool {
	return c == nil || c.allowsAt(in.Placement) && (device == c.device || c.onDemand)
}

// allowsAt reports whether a placement is what was chosen; nil: nothing was.
func (c *Chosen) allowsAt(at gpu.Placement) bool {
	return c == nil || at == c.placement || c.onDemand && at.Start == c.placement.Start
}

// creates reports whether an instance may be created; nil: nothing was chosen, so it may.
func (c *Chosen) creates() bool { return c == nil || c.onDemand }

// SetReason records why processes of the job of an engine were ended: the job may go on without them, and what the engine reads of it
// says so. An unknown lease is ignored.
func (t *Table) SetReason(id, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.leases[id]; e != nil && e.Engine != nil && e.Reason == "" {
		e.Reason = reason
		t.changedLocked(&e.Lease)
	}
}
