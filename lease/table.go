package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/rename"
)

// Isolation isolates the process of a lease, and removes the isolation. The table calls neither with its lock held, and
// never both at once for one lease.
type Isolation interface {
	// Isolate returns when the process is isolated and all restrictions that are possible here are active.
	Isolate(ctx context.Context, l Lease, p Process) (IsolationResult, error)
	// RemoveIsolation removes what Isolate created. It is called again after it failed, and for leases that were never
	// isolated.
	RemoveIsolation(ctx context.Context, l Lease) error
}

// IsolationResult is what Isolate returns about a process.
type IsolationResult struct {
	Status      api.IsolationStatus
	Environment map[string]string
	Unset       []string // variables that the environment must not have
	Process     Process  // set if Isolate started it
	Warnings    []string
}

// Config is what a table needs. Isolation is required.
type Config struct {
	Isolation Isolation
	// Save writes the state before a lease is reported. Calls do not overlap. nil: nothing is saved.
	Save func(ctx context.Context, state []byte) error
	// Changed is called for every change of a lease's state, in order, with the table's lock held: it must neither
	// block nor call the table, and may take only locks that come after the table's (see package locks).
	Changed func(Lease)
	// Noticed is called for every notice of a lease, under the same terms as Changed.
	Noticed func(l Lease, n Notice)
	// Capacity finds capacity for instances that are created on demand; nil: none is created.
	Capacity CapacityFinder
	// InstancePending is called if there are instances to create, under the same terms as Changed: TakePendingInstances
	// returns them.
	InstancePending func()
	// Preempted is called if there are leases to stop for a request of a higher priority, under the same terms as
	// Changed: TakePreemptions returns them.
	Preempted func()
	// MemoryUse is what a lease uses of a GPU's memory, in bytes, under the same terms as Changed; nil: it is not known.
	MemoryUse func(id string, on gpu.UUID) *uint64
	Now       func() time.Time // nil: time.Now
	Random    func(n int) int  // for ids, returns a number below n; nil: math/rand
}

// removeIsolationTimeout bounds the cleanup after a failed start, which must not depend on its caller's context.
const removeIsolationTimeout = 30 * time.Second

// maxRecentIDs is how many ids of ended leases are not used again.
const maxRecentIDs = 256

// Table is the lease table of one node. Its methods may be called concurrently.
type Table struct {
	cfg Config

	// saveMu serialises Save. Lock order: saveMu, then mu.
	saveMu locks.Mutex[locks.TableSave]
	saved  uint64 // the version that was saved last; guarded by saveMu

	// mu guards all fields below.
	mu           locks.Mutex[locks.Table]
	version      uint64 // counts changes that must be saved
	generation   uint64 // the last one assigned
	sequence     uint64 // of tickets
	ready        bool   // Update was called
	view         View
	leases       map[string]*entry // that have a place
	queue        []*Ticket         // in order
	reserved     map[Key][]Place
	unmet        []Unmet
	savedTickets []savedTicket // from before the restart, not claimed yet
	recentIDs    []string      // ids of the last leases that ended
	endedKeys    []EndedKey    // of the last keyed leases that ended, oldest first
	lately       lately
	order        queueOrder
	named        uint64      // the generation of the spec whose names the table has
	renames      rename.List // that specs made, also before it
}

// entry is a lease in the table.
type entry struct {
	Lease
	busy         bool   // Isolate or RemoveIsolation is running
	endRequested string // the reason, if Ended was called while busy
	preempted    bool   // TakePreemptions returned it
	unstarted    bool   // its start failed

	ticket *Ticket // that it was placed for; nil after a restart
	spec   uint64  // the generation of the spec that it was placed under
}

// New returns an empty table. It admits no lease until Update was called.
func New(cfg Config) *Table {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Table{cfg: cfg, leases: map[string]*entry{}, reserved: map[Key][]Place{}}
}

// Update sets the current state of the node, and places what can be placed.
func (t *Table) Update(v View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	respec := !t.ready || v.Generation != t.view.Generation
	t.countUseLocked() // With the half-life until now.
	t.view, t.ready = v, true
	if respec {
		t.reviseTermsLocked()
		t.occupancyLocked() // It renews the reservations, which decide what can ever fit.
	}
	for _, k := range t.queue {
		k.updateLocked(respec)
	}
	t.evaluateLocked()
}

// reviseTermsLocked copies what changes live from the grants to the leases' terms: share, latency, cap, priority, preemption, what
// follows from overuse and idleness, and memory if it fits. The rest of the terms stays the same.
func (t *Table) reviseTermsLocked() {
	o := t.liveLocked()
	t.fallLowLatencyLocked(o)
	for _, e := range t.sortedLocked() {
		// What the tenant decides also holds for a lease whose grant was removed or is of another kind now.
		if i := slices.IndexFunc(t.view.Grants, func(g Grant) bool { return g.Tenant == e.Terms.Tenant }); i >= 0 {
			g := &t.view.Grants[i]
			t.version++
			t.reviseOveruseLocked(e, g.Overuse)
			e.Terms.Priority, e.Terms.Preempt, e.Terms.Overuse = g.Priority, g.Preempt, g.Overuse
		}
		i := slices.IndexFunc(t.view.Grants, func(g Grant) bool { return g.Key() == e.Terms.Key() })
		if i < 0 || t.view.Grants[i].Kind() != e.Terms.Kind() {
			continue
		}
		g := &t.view.Grants[i]
		e.Terms.Spec.Idle = g.Spec.Idle
		old, now := e.Terms.share(), g.share()
		if old == nil || now == nil {
			continue
		}
		revised := *now
		switch was, is := api.Bytes(e.Terms.memory()).Short(), api.Bytes(g.memory()).Short(); {
		case g.memory() > e.Terms.memory() && !t.raiseFitsLocked(e, g, o):
			revised.GPUMemory = old.GPUMemory
			t.noticeLocked(
				e, "lease.memory",
				fmt.Sprintf("the grant's memory is %s now, but that does not fit next to the other grants: this lease keeps %s", is, was),
			)
		case g.memory() != e.Terms.memory():
			t.noticeLocked(e, "lease.memory", fmt.Sprintf("the GPU memory of grant %s is %s now, it was %s", e.Terms.Spec.Name, is, was))
		}
		revised.Share, e.Terms.Spec.Latency = t.reviseLowLatencyLocked(e, g, o)
		if revised.Share != old.Share {
			t.noticeLocked(
				e, "lease.share",
				fmt.Sprintf("the share of grant %s is %s now, it was %s", e.Terms.Spec.Name, revised.Share, old.Share),
			)
		}
		if e.Terms.Kind() == api.ModeMPS {
			e.Terms.Spec.MPS = &revised
		} else {
			e.Terms.Spec.Timeslice = &revised
		}
		// The check of the next lease must include what this one has now.
		for _, id := range e.Place.GPUs {
			if p := o.shared(&e.Place, id).shares[e.Terms.Key()]; p != nil {
				p.memory, p.lowLatency = max(p.memory, e.Terms.memory()), max(p.lowLatency, e.Terms.lowLatency())
			}
		}
	}
}

// reviseOveruseLocked notices a lease when its GPU memory is enforced in another way from now on: a spec says so, or a version of
// the program has another default.
func (t *Table) reviseOveruseLocked(e *entry, now *api.OveruseSpec) {
	was := e.Terms.Overuse
	if was == nil || now == nil || was.GPUMemory == now.GPUMemory || e.Terms.memory() == 0 {
		return
	}
	does := "it is only reported"
	if overuseActs(now) {
		e.Terms.Tightened = e.Terms.Tightened || !overuseActs(was)
		does = "it is frozen"
		if now.GPUMemory == "kill" {
			does = "it is stopped"
		}
		if now.Grace != nil {
			does += " after " + now.Grace.String()
		}
	}
	t.noticeLocked(
		e, "lease.memory", fmt.Sprintf(
			"overuse.gpu_memory of tenant %s is %s now, it was %s: above the %s of grant %s %s",
			e.Terms.Tenant, now.GPUMemory, was.GPUMemory, api.Bytes(e.Terms.memory()).Short(), e.Terms.Spec.Name, does,
		),
	)
}

// overuseActs reports whether a lease above its GPU memory is frozen or stopped.
func overuseActs(o *api.OveruseSpec) bool { return o.GPUMemory == "freeze" || o.GPUMemory == "kill" }

// raiseFitsLocked reports whether the lease's GPU has the capacity for its grant's larger memory.
func (t *Table) raiseFitsLocked(e *entry, g *Grant, o *occupancy) bool {
	for _, id := range e.Place.GPUs {
		d := t.view.gpu(id)
		if d == nil {
			return false
		}
		if memory, _ := o.shared(&e.Place, id).granted(g.Key(), false); !d.Overcommit && memory+g.memory() > d.budgetAt(&e.Place) {
			return false
		}
	}
	return true
}

// liveLocked returns what the leases use.
func (t *Table) liveLocked() *occupancy {
	o := newOccupancy()
	o.capacity, o.memoryUse = t.cfg.Capacity, t.cfg.MemoryUse
	for _, e := range t.leases {
		t.addLeaseLocked(o, e)
	}
	return o
}

// sortedLocked lists the leases that have a place, oldest first.
func (t *Table) sortedLocked() []*entry {
	all := make([]*entry, 0, len(t.leases))
	for _, e := range t.leases {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.Generation, b.Generation) })
	return all
}

// occupancyLocked returns what leases and reservations use; it renews the reservations.
func (t *Table) occupancyLocked() *occupancy {
	o := t.liveLocked()
	places := map[Key][]Place{}
	for _, e := range t.sortedLocked() {
		places[e.Terms.Key()] = append(places[e.Terms.Key()], e.Place)
	}
	t.reserved, t.unmet = reserve(&t.view, o, t.reserved, places)
	return o
}

// addReservedLocked adds the places that are kept free for the reserved grants for which include is true.
func (t *Table) addReservedLocked(o *occupancy, include func(*Grant) bool) {
	for i := range t.view.Grants {
		g := &t.view.Grants[i]
		if !g.Spec.Reserved || !include(g) {
			continue
		}
		for j := range t.reserved[g.Key()] {
			o.add(g, &t.reserved[g.Key()][j], true)
		}
	}
}

// changedLocked counts a change that must be saved, and reports it.
func (t *Table) changedLocked(l *Lease) {
	t.version++
	if t.cfg.Changed != nil {
		c := t.copyLocked(l)
		if part, ok := t.partLocked(&c, t.sharesLocked()); ok {
			c.Part = &part
		}
		t.cfg.Changed(c)
	}
}

// save writes the state as it is now or later. If several callers wait, one write serves all.
func (t *Table) save(ctx context.Context) error {
	if t.cfg.Save == nil {
		return nil
	}
	t.mu.Lock()
	want := t.version
	t.mu.Unlock()
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if t.saved >= want {
		return nil
	}
	t.mu.Lock()
	now, b, err := t.version, []byte(nil), error(nil)
	b, err = t.stateLocked()
	t.mu.Unlock()
	if err == nil {
		err = t.cfg.Save(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("cannot record the leases: %w", err)
	}
	t.saved = now
	return nil
}

// SaveAgain writes the state although it was written: what it was written to was removed.
func (t *Table) SaveAgain(ctx context.Context) error {
	t.saveMu.Lock()
	t.saved = 0
	t.saveMu.Unlock()
	return t.save(ctx)
}

// Start isolates the process of a lease that is placed. If it fails the lease has ended, or is ending if its isolation
// could not be removed; after ErrQueuedAgain its ticket waits again.
func (t *Table) Start(ctx context.Context, id string, p Process) (Lease, IsolationResult, error) {
	t.mu.Lock()
	e := t.leases[id]
	switch {
	case e == nil:
		t.mu.Unlock()
		return Lease{}, IsolationResult{}, notFound(id)
	case e.State != Placed || e.busy || e.Process != (Process{}):
		t.mu.Unlock()
		return Lease{}, IsolationResult{}, &api.Error{
			Kind:    api.KindConflict,
			Message: fmt.Sprintf("cannot start lease %s: it was started already", id),
		}
	}
	e.busy, e.Process = true, p
	t.changedLocked(&e.Lease)
	l := t.copyLocked(&e.Lease)
	t.mu.Unlock()

	result, err := t.isolate(ctx, e, l, p)
	if occupied, ok := errors.AsType[*Occupied](err); ok && t.queueAgain(ctx, e, occupied.GPU) {
		return Lease{}, IsolationResult{}, ErrQueuedAgain
	}
	if err != nil {
		return Lease{}, IsolationResult{}, t.abandon(ctx, e, fmt.Errorf("cannot start lease %s: %w", id, err))
	}
	t.mu.Lock()
	e.ticket = nil
	e.State, e.Isolation = Isolated, result.Status
	if result.Process != (Process{}) {
		e.Process = result.Process
	}
	t.startTimeLocked(e)
	t.changedLocked(&e.Lease)
	t.mu.Unlock()
	// The record is written before the answer: a lease that was reported is found again after the daemon ended.
	if err := t.save(ctx); err != nil {
		return Lease{}, IsolationResult{}, t.abandon(ctx, e, fmt.Errorf("cannot start lease %s: %w", id, err))
	}
	t.mu.Lock()
	if reason := e.endRequested; reason != "" {
		t.mu.Unlock()
		return Lease{}, IsolationResult{}, t.abandon(
			ctx, e, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot start lease %s: %s", id, reason)},
		)
	}
	e.State, e.busy = Running, false
	t.changedLocked(&e.Lease)
	if e.Terms.Preempt != "" && len(t.queue) > 0 {
		t.evaluateLocked() // It may be stopped for a request that waits.
	}
	l = t.copyLocked(&e.Lease)
	t.mu.Unlock()
	return l, result, nil
}

// isolate records that the lease is about to start, then isolates it: a scope that is found after the daemon ended has
// a record.
func (t *Table) isolate(ctx context.Context, e *entry, l Lease, p Process) (IsolationResult, error) {
	if err := t.save(ctx); err != nil {
		return IsolationResult{}, err
	}
	if err := t.confirm(ctx, e); err != nil {
		return IsolationResult{}, err
	}
	return t.cfg.Isolation.Isolate(ctx, l, p)
}

// abandon ends a lease whose start failed. The entry is busy.
func (t *Table) abandon(ctx context.Context, e *entry, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeIsolationTimeout)
	defer cancel()
	t.mu.Lock()
	e.unstarted = true
	t.mu.Unlock()
	return errors.Join(cause, t.finish(ctx, e, "it could not be started"))
}

// Ending records that the lease is being stopped. It keeps its place until Ended.
func (t *Table) Ending(id, reason string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil {
		return notFound(id)
	}
	if e.State == Running {
		e.State, e.Reason = Ending, reason
		t.changedLocked(&e.Lease)
	}
	return nil
}

// Ended records that the lease's processes have exited: its isolation is removed and its place is free for the next. An
// unknown lease is no error. If the isolation cannot be removed the lease stays ending, with its place: call Ended
// again.
func (t *Table) Ended(ctx context.Context, id, reason string) error {
	t.mu.Lock()
	e := t.leases[id]
	if e == nil {
		t.mu.Unlock()
		return nil
	}
	if e.busy {
		// The call that is running reads this when it has finished.
		e.endRequested = cmp.Or(e.endRequested, reason)
		t.mu.Unlock()
		return nil
	}
	e.busy = true
	t.mu.Unlock()
	return t.finish(ctx, e, reason)
}

// finish removes the isolation and frees the place. The entry is busy.
func (t *Table) finish(ctx context.Context, e *entry, reason string) error {
	t.mu.Lock()
	e.Reason = cmp.Or(e.Reason, reason)
	if e.State != Ending {
		e.State = Ending
		t.changedLocked(&e.Lease)
	}
	l := t.copyLocked(&e.Lease)
	t.mu.Unlock()

	err := t.cfg.Isolation.RemoveIsolation(ctx, l)
	t.mu.Lock()
	e.busy, e.endRequested = false, ""
	if err != nil {
		t.noticeLocked(e, "", "its isolation could not be removed: "+err.Error())
		t.mu.Unlock()
		return fmt.Errorf("cannot end lease %s: %w", l.ID, err)
	}
	t.removeLocked(e)
	t.evaluateLocked()
	t.mu.Unlock()
	return t.save(ctx)
}

// removeLocked removes the lease from the table.
func (t *Table) removeLocked(e *entry) {
	t.countUseLocked()
	delete(t.leases, e.ID)
	if e.Started != nil {
		if !e.unstarted {
			t.endKeyLocked(e)
		}
		t.view.GPUs = slices.Clone(t.view.GPUs) // The caller of Update may have it too.
		t.view.withoutMemoryOf(e)               // Until the next view: this one is of when it ran.
	}
	t.retireIDLocked(e.ID)
	e.State = Ended
	t.changedLocked(&e.Lease)
}

// retireIDLocked prevents that the id is used again soon.
func (t *Table) retireIDLocked(id string) {
	t.recentIDs = append(t.recentIDs, id)
	if n := len(t.recentIDs); n > maxRecentIDs {
		t.recentIDs = slices.Delete(t.recentIDs, 0, n-maxRecentIDs)
	}
}

// Notice is one line for the user of a lease.
type Notice struct {
	Kind string // of the event that reports it; empty if another event does
	Text string
}

// Notice adds a line for the lease's user; the last ones are kept. An unknown lease is ignored.
func (t *Table) Notice(id string, n Notice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.leases[id]; e != nil {
		t.noticeLocked(e, n.Kind, n.Text)
	}
}

func (t *Table) noticeLocked(e *entry, kind, text string) {
	e.Note(text)
	t.version++
	if t.cfg.Noticed != nil {
		t.cfg.Noticed(t.copyLocked(&e.Lease), Notice{kind, text})
	}
}

// SetIsolation replaces the isolation status of the lease, after it was read back. An unknown lease is ignored.
func (t *Table) SetIsolation(id string, w api.IsolationStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.leases[id]; e != nil {
		e.Isolation = w
	}
}

// Recovered records that a restored lease's processes run; p is the first of them, if it is known. A lease whose start
// was interrupted by the end of the daemon after it was isolated is running from now on. An unknown lease is ignored.
func (t *Table) Recovered(id string, p Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.busy {
		return
	}
	if p != (Process{}) {
		e.Process = p
	}
	if e.State == Placed {
		e.State = Running
		t.startTimeLocked(e)
	}
	t.changedLocked(&e.Lease)
}

// startTimeLocked sets the start time and the expiry of the lease.
func (t *Table) startTimeLocked(e *entry) {
	t.countUseLocked()
	now := t.cfg.Now()
	e.Started = &now
	if m, _ := e.Time(); m != nil {
		ends := now.Add(time.Duration(*m))
		if e.EndBy != nil && e.EndBy.Before(ends) {
			ends = *e.EndBy
		}
		e.Expires = &ends
	}
}

// Live returns copies of all leases that have a place, oldest first.
func (t *Table) Live() []Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.copiesLocked()
}

func (t *Table) copiesLocked() []Lease {
	all, own := make([]Lease, 0, len(t.leases)), t.ownLocked()
	for _, e := range t.sortedLocked() {
		all = append(all, e.copyNextTo(own))
	}
	return all
}

// copyLocked returns a copy of a lease, with what the leases of its grant there have for themselves.
func (t *Table) copyLocked(l *Lease) Lease { return l.copyNextTo(t.ownLocked()) }

// Get returns a copy of one lease that has a place.
func (t *Table) Get(id string) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.leases[id]; e != nil {
		return t.copyLocked(&e.Lease), true
	}
	return Lease{}, false
}

// List returns all leases as the API reports them: those that have a place, oldest first, then those that wait, in the
// order of the queue.
func (t *Table) List() []api.Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	leases := t.copiesLocked()
	entitled := Entitled(leases)
	out := make([]api.Lease, 0, len(leases)+len(t.queue))
	for i := range leases {
		w := leases[i].Wire()
		if e, ok := entitled[w.ID]; ok {
			w.Share.Entitled = e
		}
		out = append(out, w)
	}
	for _, k := range t.queue {
		out = append(out, k.wireLocked())
	}
	return out
}

// Granted returns the memory that live and reserved grants have on each shared GPU, sorted by tenant and grant.
func (t *Table) Granted() map[gpu.UUID][]api.GrantedMemory {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[gpu.UUID][]api.GrantedMemory{}
	o := t.liveLocked()
	t.addReservedLocked(o, func(*Grant) bool { return true })
	for id, taken := range o.gpus {
		sum := map[Key]uint64{}
		for _, u := range append(slices.Collect(maps.Values(taken.shared)), taken) {
			for k, p := range u.shares {
				sum[k] += p.memory
			}
		}
		for k, bytes := range sum {
			out[id] = append(out[id], api.GrantedMemory{Tenant: k.Tenant, Grant: k.Grant, Bytes: bytes})
		}
		slices.SortFunc(out[id], func(a, b api.GrantedMemory) int {
			return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Grant, b.Grant))
		})
	}
	return out
}

// Unmet returns the reserved grants whose places could not all be kept free.
func (t *Table) Unmet() []Unmet {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.unmet)
}

func notFound(id string) error {
	return &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("cannot find lease %s", id), Hint: "see gpushare lease list"}
}
