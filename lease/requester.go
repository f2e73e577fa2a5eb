package lease

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/api"
)

// Requester is the user of a request. Their rights count when they are used: when the request gets its place and when the lease starts.
type Requester interface {
	// Standing returns whether the user may use a tenant now. It is called with the table's lock held: it must neither block nor
	// call the table.
	Standing(tenant string) Standing
	// Confirm is Standing after the host's directory was asked.
	Confirm(ctx context.Context, tenant string) Standing
}

// Standing is whether a user may use a tenant. The zero value: they may.
type Standing struct {
	Denied string // why they may not any more
	Unsure string // why that is not known: nothing is granted, and nothing ends
}

// RightOf returns the user by whose right a lease runs; ok is false if that is the spec's, as for logins, units and containers, or an
// engine's.
func (l *Lease) RightOf() (uid int, ok bool) {
	switch l.Origin {
	case OriginAttached:
		if l.Engine != nil {
			return 0, false // The engine decides when it ends.
		}
		return l.AttachedBy, true
	case OriginLogin, OriginUnit, OriginContainer:
		return 0, false
	}
	return l.UID, true
}

// standing returns whether the user of a request may use its tenant now. The daemon's own requests have no requester.
func (r *Request) standing(tenant string) Standing {
	if r.By == nil {
		return Standing{}
	}
	return r.By.Standing(tenant)
}

// denied is the error of a request whose user has lost the right to it.
func (s Standing) denied() *api.Error {
	return &api.Error{Kind: api.KindDenied, Message: "cannot place the lease: " + s.Denied, Hint: "ask the administrator to add you to it"}
}

// Recheck ends the requests whose users may not use their tenant any more, and places what can be placed then.
func (t *Table) Recheck() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.queue {
		k.recheckLocked()
	}
	t.evaluateLocked()
}

// recheckLocked ends the ticket if its user may not use the tenant any more, and reports whether it did.
func (k *Ticket) recheckLocked() bool {
	if k.state.over() {
		return true
	}
	s := k.request.standing(k.tenant)
	if s.Denied == "" {
		return false
	}
	reported := k.lease.State == Queued
	k.endLocked(ticketFailed, s.denied())
	if reported {
		k.reportEndedLocked()
	}
	return true
}

// confirm returns why a lease that is about to start may not: its user has lost the right to it, or that is not known.
func (t *Table) confirm(ctx context.Context, e *entry) error {
	t.mu.Lock()
	k := e.ticket
	t.mu.Unlock()
	if k == nil || k.request.By == nil {
		return nil
	}
	tenant := k.tenantNow()
	s := k.request.By.Confirm(ctx, tenant)
	if now := k.tenantNow(); now != tenant { // It was renamed meanwhile, once: two changes take longer than an answer.
		s = k.request.By.Confirm(ctx, now)
	}
	switch {
	case s.Denied != "":
		return s.denied()
	case s.Unsure != "":
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot start lease %s: %s", e.ID, s.Unsure),
			Hint:    "try again when the directory answers: 'getent initgroups USER'",
		}
	}
	return nil
}

// Owns reports whether a user has a lease or waits for one.
func (t *Table) Owns(uid int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.leases {
		if e.UID == uid {
			return true
		}
	}
	for _, k := range t.queue {
		if k.request.UID == uid {
			return true
		}
	}
	return false
}
