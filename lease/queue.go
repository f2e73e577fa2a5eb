package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Ticket is one request that waits for a place or has just got one. One goroutine reads it with Next; Cancel may be
// called from any.
type Ticket struct {
	t       *Table
	id      string
	tenant  string
	changed chan struct{} // has one token if something changed

	// The table's lock guards all fields below.
	lease      Lease
	request    Request
	sequence   uint64
	candidates []Grant
	state      ticketState
	err        error // why it failed or was cancelled
	selected   string
	position   int // in the queue, from 1
	waiting    string
	unread     bool // Next has not returned the last change yet

	pending  *PendingInstance // planned and creating: the instance
	ends     time.Time        // when a lease in it ends at the latest; zero: that is not known
	claimed  *PendingInstance // without capacity: what it should get next
	avoided  map[gpu.UUID]time.Time
	deadline time.Time // of Await, where the request has a limit

	order    ticketOrder // why it is where it is in the queue
	expected *time.Time  // when it starts at the latest, if leases run to their known ends
	reported *time.Time  // the same, as the last change had it
	noStart  string      // why that is not known

	preempt     *preemption // chosen and preempting: the leases that are stopped for it; later, what they freed
	preemptions int         // how often leases were stopped for it
}

// Update is what Next returns: the ticket's position, or its place.
type Update struct {
	Lease    api.Lease
	Placed   bool
	Selected string // if placed: which grant, and why
}

// Allowed returns why the user of a request may not have what it names. It places nothing and checks no capacity.
func (t *Table) Allowed(r *Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ready {
		return errNotObserved()
	}
	_, _, err := t.resolveLocked(r)
	return err
}

func errNotObserved() error {
	return &api.Error{
		Kind:    api.KindUnavailable,
		Message: "cannot place a lease: the node was not observed yet",
		Hint:    "try again in a moment",
	}
}

// Submit requests a place. It returns an *api.Error at once for what is not allowed, what can never fit, and without
// Wait what does not fit now. The caller starts or cancels a ticket that is placed.
func (t *Table) Submit(r Request) (*Ticket, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ready {
		return nil, errNotObserved()
	}
	tenant, candidates, err := t.resolveLocked(&r)
	if err != nil {
		return nil, err
	}
	if err := t.tooManyLocked(&r); err != nil {
		return nil, err
	}
	r.Command = ShortCommand(r.Command, MaxKept) // A ticket keeps the request.
	if candidates, err = t.feasibleLocked(&r, candidates); err != nil {
		return nil, err
	}
	if t.view.DriverUnavailable != "" && t.view.Maintenance == "" && r.Wait == nil {
		return nil, &api.Error{
			Kind:    api.KindUnavailable,
			Message: "cannot place a lease: the GPUs cannot be read now: " + t.view.DriverUnavailable,
			Hint:    "see gpushare doctor",
		}
	}
	grant := ""
	if len(candidates) == 1 {
		grant = candidates[0].Spec.Name
	}
	t.sequence++
	sequence := t.sequence
	if old, ok := t.takeSavedLocked(&r); ok {
		sequence = old
	}
	now := t.cfg.Now()
	t.generation = max(t.generation+1, uint64(max(now.UnixMilli(), 0)))
	id := newID(tenant, grant, t.cfg.Random, t.idInUseLocked)
	k := &Ticket{
		t: t, id: id, tenant: tenant, changed: make(chan struct{}, 1), request: r, sequence: sequence, candidates: candidates,
		state: ticketWaiting,
		lease: Lease{
			ID: id, Generation: t.generation, Terms: candidates[0], State: requested,
			User: r.User, UID: r.UID, Command: r.Command, MaxTime: r.MaxTime, Created: now,
			Origin: r.Origin, Cgroup: r.Cgroup, Unit: r.Unit, AttachedBy: r.AttachedBy, Key: r.Key,
		},
	}
	waits := t.waitingLocked(r.UID)
	t.queue = append(t.queue, k)
	t.evaluateLocked()
	switch k.state {
	case ticketPlaced:
		return k, nil
	case ticketFailed:
		return nil, k.err // Its user has lost the right to it between the request and now.
	}
	if err := k.mayNotWaitLocked(waits); err != nil {
		k.endLocked(ticketFailed, err)
		t.queue = slices.DeleteFunc(t.queue, func(q *Ticket) bool { return q == k })
		t.evaluateLocked() // what it claimed is free for other requests
		return nil, err
	}
	k.lease.State = Queued
	t.changedLocked(&k.lease)
	return k, nil
}

// mayNotWaitLocked is why a request that found no place is refused; nil if it waits. waits is for how many requests the user waited
// before it.
func (k *Ticket) mayNotWaitLocked(waits int) error {
	full := k.fullLocked(waits)
	switch {
	case full != "" && k.request.Wait != nil:
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot wait for a lease of %s: %s", k.tenant, full),
			Hint:    "let some of them end, or be placed, first: see 'gpushare lease list'",
		}
	case full != "" || k.request.Wait == nil && (!k.state.kept() || k.request.Immediate):
		return k.refusalLocked()
	}
	return nil
}

// waitHint is what helps a request that is refused because there is no place now.
func (k *Ticket) waitHint() string {
	const wait = "wait for a place with --wait"
	if k.t.view.Maintenance != "" {
		return wait
	}
	for i := range k.t.view.GPUs {
		if d := &k.t.view.GPUs[i]; !d.Missing && slices.ContainsFunc(k.candidates, func(g Grant) bool { return g.mayUse(d) }) {
			return wait
		}
	}
	return "only an administrator can put it back: 'gpushare status' shows it; with --wait the request waits until the driver finds it"
}

// idInUseLocked reports whether an id is in use or was used lately.
func (t *Table) idInUseLocked(id string) bool {
	return t.leases[id] != nil || slices.Contains(t.recentIDs, id) ||
		slices.ContainsFunc(t.queue, func(k *Ticket) bool { return k.lease.ID == id })
}

// feasibleLocked drops the grants that can never have a place. If none is left it returns the reason of the first.
func (t *Table) feasibleLocked(r *Request, candidates []Grant) ([]Grant, error) {
	o := newOccupancy()
	t.addReservedLocked(o, func(g *Grant) bool { return g.placesAreFixed(&t.view) })
	var left []Grant
	var first *api.Error
	for i := range candidates {
		if err := cmp.Or(feasible(&candidates[i], &t.view, o), r.exceedsPerUser(&candidates[i], &t.view)); err == nil {
			left = append(left, candidates[i])
		} else if first == nil {
			first = err
		}
	}
	if len(left) == 0 {
		return nil, first
	}
	return left, nil
}

// evaluateLocked places what can be placed, in the order of the queue, and updates the position of the other tickets.
func (t *Table) evaluateLocked() {
	t.countUseLocked()
	t.order.sort(t)
	for again := true; again; {
		again = t.passLocked()
	}
	anyPending, anyPreempted := false, false
	for i, k := range t.queue {
		k.setPosition(i + 1)
		anyPending = anyPending || k.state == ticketPlanned
		anyPreempted = anyPreempted || k.state == ticketChosen
	}
	if anyPreempted && t.cfg.Preempted != nil {
		t.cfg.Preempted()
	}
	if anyPending && t.cfg.InstancePending != nil {
		t.cfg.InstancePending()
	}
}

// passLocked tries each ticket once, and reports whether another pass is needed: a reserved grant that was placed elsewhere frees the
// place that was reserved for it, a user who has a lease more may not have what an earlier request of theirs claims, and what a
// request claimed that is refused is free for others.
func (t *Table) passLocked() (again bool) {
	t.queue = slices.DeleteFunc(t.queue, func(k *Ticket) bool { return k.recheckLocked() }) // What they claimed is free.
	o := t.occupancyLocked()
	t.claimPendingLocked(o)
	left := t.queue[:0]
	for _, k := range t.queue {
		switch {
		case k.tryLocked(o):
			again = again || k.lease.Terms.Spec.Reserved || k.request.limit(&t.view) != (PerUser{})
		case k.lease.State == Queued && k.request.Wait == nil && !k.state.kept():
			k.refuseLocked()
			again = true
		default:
			k.awaitLocked(o)
			left = append(left, k)
		}
	}
	clear(t.queue[len(left):])
	t.queue = left
	return again
}

// rank returns the priority of the ticket's tenant.
func (k *Ticket) rank() int { return k.candidates[0].rank() }

// attempt is what was found when a ticket was tried.
type attempt struct {
	grant *Grant // with its place; nil if there is none
	place *Place
	ends  time.Time // when a lease there ends at the latest; zero: that is not known

	waiting   []string // of each candidate without a place
	obstacles []*obstacle
	creatable []int // candidates for which an instance might be created
	soon      bool  // a place may open in a moment
}

// tryLocked places the ticket, or claims what it should get next.
func (k *Ticket) tryLocked(o *occupancy) (placed bool) {
	k.expected = nil
	if k.state == ticketSoon || k.state == ticketChosen {
		k.moveLocked(ticketWaiting) // No lease is stopped yet: they are chosen again, because they may have changed.
	}
	if k.withheldLocked() {
		return false
	}
	who := o.requesterOf(k)
	if why := who.mostLeases(); why != "" {
		k.setWaiting(why)
		return false
	}
	found := k.findLocked(o, who)
	if found.place != nil {
		k.placeLocked(found, o)
		return true
	}
	if k.pending == nil && !k.request.Immediate {
		k.planInstanceLocked(o, who, found.creatable)
	}
	preempted, ok := "", false
	if k.pending == nil {
		if preempted, ok = k.preemptLocked(o, who); ok {
			k.setWaiting(preempted)
			return false
		}
	}
	k.claimLocked(o, who, found.obstacles, found.creatable)
	text := strings.Join(found.waiting, "; ")
	if preempted != "" {
		text += "; " + preempted
	}
	switch {
	case k.pending != nil:
		text = k.pendingText()
	case found.soon:
		k.moveLocked(ticketSoon)
	}
	k.setWaiting(text)
	return false
}

// withheldLocked reports whether the ticket gets no place now, whatever is free.
func (k *Ticket) withheldLocked() bool {
	if why := k.t.view.Maintenance; why != "" {
		k.withholdLocked(why)
		return true
	}
	if k.t.yieldsToSavedLocked(k) {
		k.setWaiting(savedTicketsText)
		return true
	}
	why := k.request.standing(k.tenant).Unsure
	if why != "" {
		k.withholdLocked(why) // Others do not wait for an answer of the directory: it claims nothing.
	}
	return why != ""
}

// findLocked searches a place for the first candidate that has one.
func (k *Ticket) findLocked(o *occupancy, who requester) *attempt {
	var x attempt
	for i := range k.candidates {
		g := &k.candidates[i]
		who.ends = k.endFrom(g, k.t.cfg.Now())
		p, ob := placeFor(g, &k.t.view, o, who)
		if p != nil {
			x.grant, x.place, x.ends = g, p, who.ends
			return &x
		}
		x.obstacles = append(x.obstacles, ob)
		x.soon = x.soon || ob.mayFitSoon
		if ob.canCreate {
			x.creatable = append(x.creatable, i)
		}
		if len(k.candidates) > 1 {
			x.waiting = append(x.waiting, g.Spec.Name+": "+ob.text)
		} else {
			x.waiting = append(x.waiting, ob.text)
		}
	}
	return &x
}

// withholdLocked keeps the ticket waiting for what may take long. Who does not wait for a place does not wait for that, even if an
// instance is being created.
func (k *Ticket) withholdLocked(why string) {
	if k.state == ticketCreating && k.request.Wait == nil {
		k.moveLocked(k.withoutInstance())
	}
	k.setWaiting(why)
}

// claimLocked claims what a ticket without a place should get next.
func (k *Ticket) claimLocked(o *occupancy, who requester, obstacles []*obstacle, creatable []int) {
	if k.pending == nil {
		if x := k.expectLocked(o); x != nil {
			if k.claimed = nil; !x.at.IsZero() {
				k.expected = &x.at
			}
			k.claimExpectedLocked(o, x, obstacles)
			return
		}
	}
	for _, ob := range obstacles {
		for _, id := range ob.claims {
			o.at(id).claim(time.Time{})
		}
	}
	if k.pending == nil && !k.request.Immediate {
		k.claimInstanceLocked(o, who, creatable)
	}
}

// setWaiting updates the reason why the ticket waits.
func (k *Ticket) setWaiting(text string) {
	if text != k.waiting {
		k.waiting, k.unread = text, true
	}
}

// placeLocked assigns the place that was found to the ticket.
func (k *Ticket) placeLocked(found *attempt, o *occupancy) {
	g, p, ends := found.grant, found.place, found.ends
	if len(k.candidates) > 1 && k.lease.State == requested { // No caller knows its id yet: the id gets the grant.
		k.id = newID(k.tenant, g.Spec.Name, k.t.cfg.Random, k.t.idInUseLocked)
		k.lease.ID = k.id
	}
	k.lease.Terms, k.lease.Place, k.lease.State = *g, *p, Placed
	k.lease.Terms.Only = nil
	k.selected = k.selectionReason(g, found.waiting)
	if k.lease.EndBy = nil; !ends.IsZero() && o.claimedAt(p, k.id) {
		k.lease.EndBy = &ends
	}
	if k.pending != nil {
		o.user(k.request.UID).pending--
	}
	e := &entry{Lease: k.lease.clone(), ticket: k, spec: k.t.view.Generation}
	k.t.leases[e.ID] = e
	k.t.addLeaseLocked(o, e)
	o.backfill.read = false
	k.position, k.waiting, k.unread = 0, "", true
	k.moveLocked(ticketPlaced)
	k.signal()
	k.t.changedLocked(&e.Lease)
}

// selectionReason states in one line which grant was chosen and for what reason.
func (k *Ticket) selectionReason(g *Grant, passed []string) string {
	s := "grant " + g.Spec.Name + " of " + g.Tenant + ": "
	switch {
	case k.request.Grant != "":
		return s + "requested"
	case len(k.candidates) == 1 && k.request.Kind != "":
		return s + "the only one that fits " + k.request.Kind
	case len(k.candidates) == 1:
		return s + "the only one that fits"
	case len(passed) > 0:
		return s + "selected automatically (" + strings.Join(passed, "; ") + ")"
	}
	return s + "selected automatically"
}

// setPosition updates the ticket's position.
func (k *Ticket) setPosition(position int) {
	if position != k.position {
		k.position, k.unread = position, true
	}
	if k.unread {
		k.signal()
	}
}

func (k *Ticket) signal() {
	select {
	case k.changed <- struct{}{}:
	default: // the last change was not read yet
	}
}

// updateLocked evaluates the request again after the node or the spec changed.
func (k *Ticket) updateLocked(respec bool) {
	if k.recheckLocked() {
		return // One who is not a member any more learns nothing of the tenant.
	}
	_, candidates, err := k.t.resolveLocked(&k.request)
	if err != nil && !respec {
		return // A GPU that it names is missing, maybe for a moment: without a new spec nothing else can have changed.
	}
	if err == nil {
		var left []Grant
		if left, err = k.t.feasibleLocked(&k.request, candidates); err == nil {
			candidates = left
		} else if !respec {
			// A GPU that is missing for a moment does not end the wait; a spec with no place for the request does.
			err = nil
		}
	}
	if err != nil {
		k.endLocked(ticketFailed, err)
		k.reportEndedLocked()
		return
	}
	k.candidates = candidates
}

// endLocked ends the ticket without a place.
func (k *Ticket) endLocked(as ticketState, err error) {
	k.err, k.unread = err, true
	k.moveLocked(as)
	k.t.retireIDLocked(k.lease.ID)
	k.lease.State = Ended
	k.signal()
}

// reportEndedLocked reports the end of a ticket that was reported before.
func (k *Ticket) reportEndedLocked() {
	if k.t.cfg.Changed != nil {
		k.t.cfg.Changed(k.lease.clone())
	}
}

func (k *Ticket) wireLocked() api.Lease {
	w := k.lease.Wire()
	w.Position, w.Waiting, w.ExpectedStart = k.position, k.waiting, k.reported
	if k.position > 0 {
		w.PositionReason = k.positionReason()
		w.InUseBy = k.inUseByLocked()
		if k.reported == nil {
			w.StartUnknown = k.noStart
		}
	}
	return w
}

// ID returns the lease's id; it is the same before and after placement.
func (k *Ticket) ID() string { return k.id }

// Next waits for a change and returns it; the first call returns the current position. After Placed or an error the
// ticket does not change any more. It fails with the context's error, or with an *api.Error if the request can no
// longer be satisfied.
func (k *Ticket) Next(ctx context.Context) (Update, error) {
	for {
		k.t.mu.Lock()
		if k.unread {
			k.unread = false
			u := Update{Lease: k.wireLocked(), Placed: k.state == ticketPlaced, Selected: k.selected}
			err := k.err
			k.t.mu.Unlock()
			return u, err
		}
		k.t.mu.Unlock()
		select {
		case <-k.changed:
		case <-ctx.Done():
			return Update{}, ctx.Err()
		}
	}
}

// Await waits until the ticket is placed, and calls waiting, which may be nil, each time its position or reason
// changes. When the context ends or the request's Wait has passed since the first call the ticket is cancelled.
func (k *Ticket) Await(ctx context.Context, waiting func(api.Lease)) (Update, error) {
	limit := ctx
	if w := k.request.Wait; w != nil && *w > 0 {
		if k.deadline.IsZero() {
			k.deadline = time.Now().Add(*w)
		}
		var cancel context.CancelFunc
		limit, cancel = context.WithDeadline(ctx, k.deadline)
		defer cancel()
	}
	last := ""
	for {
		u, err := k.Next(limit)
		switch {
		case err == nil && u.Placed:
			return u, nil
		case err == nil:
			if last == "" && k.request.Key != "" {
				// A position in the queue is saved before it is reported, so that the caller can claim it after a
				// restart. Without the record the request would only be queued again at the end.
				_ = k.t.save(limit)
			}
			last = u.Lease.Waiting
			if waiting != nil {
				waiting(u.Lease)
			}
			continue
		case limit.Err() == nil: // the table refused
			return Update{}, err
		}
		k.Cancel()
		if ctx.Err() != nil {
			return Update{}, fmt.Errorf("cannot wait for a place any longer: %w", context.Cause(ctx))
		}
		return Update{}, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot place a lease of %s: waited %s; %s",
			k.tenant, api.Duration(k.request.Wait.Round(time.Millisecond)), last), Hint: "wait longer, or ask for something else"}
	}
}

// Cancel removes the ticket from the queue, or frees its place if the lease was not started. Otherwise it does nothing.
func (k *Ticket) Cancel() {
	t := k.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !k.state.over() {
		k.endLocked(ticketCancelled, &api.Error{Kind: api.KindUnavailable, Message: "cannot place the lease: the request was cancelled"})
		t.queue = slices.DeleteFunc(t.queue, func(q *Ticket) bool { return q == k })
		k.reportEndedLocked()
	} else if e := t.leases[k.lease.ID]; e != nil && e.Generation == k.lease.Generation &&
		e.State == Placed && !e.busy && e.Process == (Process{}) {
		e.Reason = "the request was cancelled"
		t.removeLocked(e)
	} else {
		return
	}
	t.evaluateLocked()
}
