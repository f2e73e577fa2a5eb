package lease

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
)

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
			Hint:    "see 'gpushare doctor'",
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
			Engine: r.Engine, Own: r.Own,
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
	wait := "wait for a place with --wait"
	if k.request.Engine != nil {
		wait = "request it again later: 'gpushare status' on the node shows what is in the way"
	}
	if k.t.view.Maintenance != "" {
		return wait
	}
	for i := range k.t.view.GPUs {
		if d := &k.t.view.GPUs[i]; !d.Missing && slices.ContainsFunc(k.candidates, func(g Grant) bool { return g.mayUse(d) }) {
			return wait
		}
	}
	back := "only an administrator can put it back: 'gpushare status' shows it"
	if k.request.Engine != nil {
		return back
	}
	return back + "; with --wait the request waits until the driver finds it"
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
