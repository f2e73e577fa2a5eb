package lease

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/internal/owed"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/internal/text"
)

// Owed is what users owe of their grants. It is recorded with the leases.
func (t *Table) Owed() *owed.Accounts { return &t.owed }

// Payer is who owes what the lease uses too much.
func (l *Lease) Payer() owed.Payer { return payerOf(&l.Terms, l.UID) }

func payerOf(g *Grant, uid int) owed.Payer { return owed.Payer{Name: rename.Name(g.Key()), UID: uid} }

// owes is until when a requester waits for the next lease of a grant because leases of theirs were ended for GPU memory, and why; empty:
// they do not wait. A program above its limit that is started again as soon as it was ended would have the memory of others nearly all the
// time. The job of an engine does not wait: it would run without a lease.
func (r *requester) owes(g *Grant) (until time.Time, why string) {
	if r.owed == nil {
		return time.Time{}, ""
	}
	until, ended := r.owed.Waits(payerOf(g, *r.uid), r.now)
	if ended == 0 {
		return time.Time{}, ""
	}
	return until, fmt.Sprintf(
		"%s of %s with grant %s ended within an hour for GPU memory above the limit: the next one may start at %s",
		text.Count(ended, "lease"), r.name, g.Spec.Name, until.Local().Format(time.TimeOnly),
	)
}

// owesLocked is the same of a request whose grants all wait: until the first one does not.
func (k *Ticket) owesLocked(who *requester) (until time.Time, why string) {
	for i := range k.candidates {
		at, text := who.owes(&k.candidates[i])
		if text == "" {
			return time.Time{}, ""
		}
		if why == "" || at.Before(until) {
			until, why = at, text
		}
	}
	return until, why
}
