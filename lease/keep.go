package lease

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// What is kept of one user: a caller decides how long a command is and how many leases they request.
const (
	// MaxKept is how much is kept of a command, and of each text about a lease, in bytes.
	MaxKept = text.KeptCommand
	// maxPerUser is how many leases one user may have at once, with those that wait. Each change of a lease writes all.
	maxPerUser = 128
	// maxWaiting is how many places one user may wait for at once: every change of the node evaluates all waiting requests.
	maxWaiting = 64
)

// ShortCommand returns a copy of a command with at most that many bytes.
func ShortCommand(argv []string, most int) []string { return text.ShortCommand(argv, most) }

// tooManyLocked returns why a user may have no further lease at all, nil if they may.
func (t *Table) tooManyLocked(r *Request) error {
	if r.Admin {
		return nil
	}
	n := t.waitingLocked(r.UID)
	for _, e := range t.leases {
		if e.UID == r.UID {
			n++
		}
	}
	if n < maxPerUser {
		return nil
	}
	return &api.Error{
		Kind: api.KindUnavailable,
		Hint: "stop some, or let them end: see 'gpushare lease list'",
		Message: fmt.Sprintf(
			"cannot start a lease: %s has %d leases, with those that wait, and a user may have %d", r.userName(), n, maxPerUser,
		),
	}
}

// fullLocked returns why a further request of a user may not wait: for so many waits the user already. Empty if it may. waits is
// for how many requests the user waited before it.
func (k *Ticket) fullLocked(waits int) string {
	t := k.t
	if k.request.Admin {
		return ""
	}
	if waits >= maxWaiting {
		return fmt.Sprintf("you wait for %d already, the most that a user may", waits)
	}
	most := t.view.Queue.Waiting
	if most == 0 {
		return ""
	}
	// A request that may have one of several grants counts for each.
	for i := range k.candidates {
		n := 0
		for _, other := range t.queue {
			if other != k && other.request.UID == k.request.UID && !other.request.Admin &&
				slices.ContainsFunc(other.candidates, func(g Grant) bool { return g.Key() == k.candidates[i].Key() }) {
				n++
			}
		}
		if n >= most {
			return fmt.Sprintf(
				"you wait for %d of grant %s already, the most that a user may (queue.waiting)", n, k.candidates[i].Spec.Name,
			)
		}
	}
	return ""
}

// waitingLocked counts the waiting tickets of a user.
func (t *Table) waitingLocked(uid int) int {
	n := 0
	for _, k := range t.queue {
		if k.request.UID == uid && !k.request.Admin {
			n++
		}
	}
	return n
}
