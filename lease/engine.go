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
	BindBy  time.Time   `json:"bind_by"` // it ends then if it has no process; of no meaning if the lease is kept
	// Kept: the lease ends when it is released, and not with its processes or cgroups.
	Kept bool `json:"kept,omitempty"`
	// Further are its cgroups besides Lease.Cgroup. Only a kept lease has some.
	Further []string `json:"further,omitempty"`
	// Begun are those of its cgroups that were there once: one that is not there is of a pod that ended. Only a kept lease has some.
	Begun []string `json:"begun,omitempty"`
	// Empty is since when a kept lease that had processes has none; nil: it has some, or had none yet.
	Empty *time.Time `json:"empty,omitempty"`
	// EndedAt is when processes of a kept lease were ended last; the lease goes on, and has the reason.
	EndedAt *time.Time `json:"ended_at,omitempty"`
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
	Kept                bool
}

// wire is what the API says of it.
func (l *Lease) engineWire() *api.LeaseEngine {
	if l.Engine == nil {
		return nil
	}
	e := l.Engine
	w := &api.LeaseEngine{Key: e.Key, Account: e.Account, Kept: e.Kept, Bound: l.Process != (Process{}) && e.Empty == nil}
	switch {
	case e.Empty != nil:
		w.EmptySince = e.Empty
	case w.Bound:
	case e.Kept:
		w.EmptySince = &l.Created
	default:
		w.BindBy = &e.BindBy
	}
	if e.Kept {
		w.Cgroups, w.EndedAt = l.Cgroups(), e.EndedAt
	}
	return w
}

// Kept reports whether the lease ends when it is released, and not with its processes.
func (l *Lease) Kept() bool { return l.Engine != nil && l.Engine.Kept }

// Waits reports whether the lease is kept, had processes, and has none now.
func (l *Lease) Waits() bool { return l.Engine != nil && l.Engine.Empty != nil }

// Cgroups are the cgroups that an engine named for the lease, the first one first; none: it has named none.
func (l *Lease) Cgroups() []string {
	if l.Cgroup == "" {
		return nil
	}
	if l.Engine == nil {
		return []string{l.Cgroup}
	}
	return append([]string{l.Cgroup}, l.Engine.Further...)
}

// CgroupsLeft are its cgroups without those of pods that ended: they are there, or they come yet.
func (l *Lease) CgroupsLeft(exists func(cgroup string) bool) []string {
	return slices.DeleteFunc(l.Cgroups(), func(cg string) bool {
		return l.Engine != nil && slices.Contains(l.Engine.Begun, cg) && !exists(cg)
	})
}

// SetBegun records which cgroups of a kept lease are there now. It is false if that is known of all, and of other leases.
func (t *Table) SetBegun(id string, exists func(cgroup string) bool) (changed bool) {
	l, ok := t.Get(id)
	if !ok || !l.Kept() {
		return false
	}
	there := slices.DeleteFunc(l.Cgroups(), func(cg string) bool { return slices.Contains(l.Engine.Begun, cg) || !exists(cg) })
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || !e.Kept() {
		return false
	}
	all := e.Cgroups()
	there = slices.DeleteFunc(there, func(cg string) bool { return slices.Contains(e.Engine.Begun, cg) || !slices.Contains(all, cg) })
	if len(there) == 0 {
		return false
	}
	e.changeEngine(func(n *Engine) { n.Begun = append(n.Begun, there...) })
	t.changedLocked(&e.Lease)
	return true
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
	// Command is what the engine calls the lease in lists: it asks later which one it was, also of a lease that never had a process.
	Command []string `json:"command,omitempty"`
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
	t.endedKeys = append(t.endedKeys, EndedKey{e.Engine.Key, e.ID, t.cfg.Now(), e.Reason, e.Command})
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
	if e == nil || e.busy || !e.AwaitsCgroup() {
		return false
	}
	switch {
	case slices.Contains(e.Cgroups(), cgroup):
		return true
	case e.Cgroup == "":
		e.Cgroup = cgroup
	case e.Kept():
		e.changeEngine(func(n *Engine) { n.Further = append(n.Further, cgroup) })
	default:
		return false
	}
	t.changedLocked(&e.Lease)
	return true
}

// DropCgroup takes a cgroup from a kept lease that waits for its processes. It is false if no such lease has it.
func (t *Table) DropCgroup(id, cgroup string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.busy || !e.AwaitsCgroup() || !e.Kept() || !slices.Contains(e.Cgroups(), cgroup) {
		return false
	}
	left := slices.DeleteFunc(e.Cgroups(), func(cg string) bool { return cg == cgroup })
	if len(left) == 0 {
		e.Cgroup = ""
	} else {
		e.Lease = e.WithCgroups(left)
	}
	t.changedLocked(&e.Lease)
	return true
}

// WithCgroups is a kept lease with other cgroups: one or more.
func (l *Lease) WithCgroups(cgroups []string) Lease {
	n := l.clone()
	n.Cgroup = cgroups[0]
	n.changeEngine(func(e *Engine) {
		e.Further = slices.Clone(cgroups[1:])
		e.Begun = slices.DeleteFunc(e.Begun, func(cg string) bool { return !slices.Contains(cgroups, cg) })
	})
	return n
}

// changeEngine changes a copy: copies of the lease have the value of before.
func (l *Lease) changeEngine(f func(n *Engine)) {
	n := *l.Engine
	n.Further, n.Begun = slices.Clone(n.Further), slices.Clone(n.Begun)
	f(&n)
	l.Engine = &n
}

// SetCgroups replaces the cgroups of a kept lease that runs. It is false if there is no such lease, or it is being started or ended.
func (t *Table) SetCgroups(id string, cgroups []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.busy || e.State != Running || !e.Kept() || len(cgroups) == 0 {
		return false
	}
	e.Lease = e.WithCgroups(cgroups)
	t.changedLocked(&e.Lease)
	return true
}

// SetEmpty records since when a kept lease that runs has no process; nil: it has some. changed is false if that is known, and of other
// leases.
func (t *Table) SetEmpty(id string, since *time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.State != Running || !e.Kept() || (e.Engine.Empty == nil) == (since == nil) {
		return false
	}
	e.changeEngine(func(n *Engine) { n.Empty = since })
	t.changedLocked(&e.Lease)
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

// SetReason records why processes of the job of an engine are ended: the job may go on without them, and what the engine reads of it
// says so. A lease that is kept has the last reason, and when that was. An unknown lease is ignored.
func (t *Table) SetReason(id, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.Engine == nil || e.Reason != "" && !e.Kept() || e.State != Running {
		return
	}
	e.Reason = reason
	if e.Kept() {
		now := t.cfg.Now()
		e.changeEngine(func(n *Engine) { n.EndedAt = &now })
	}
	t.changedLocked(&e.Lease)
}
