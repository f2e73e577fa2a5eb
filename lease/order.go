package lease

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// assumedTime is for how long a request that is ahead counts, and a lease that has just started: without it all that is free at
// one moment would go to the user who used a second less.
const assumedTime = 10 * time.Minute

// ticketOrder is what a ticket's place in the queue was computed from.
type ticketOrder struct {
	rank   int     // of the priority
	part   float64 // of a GPU, that the lease would have
	user   int64   // GPU-milliseconds that count for its user in its tenant, with the user's requests ahead
	tenant int64   // the same for its tenant

	userUsed, tenantUsed float64 // in GPU-seconds, lately
	own, higher          int     // requests ahead: of its user, and of higher priorities
	freed                bool    // leases are stopped for it, or for a later one of its user for the same grant
	afterFreed           bool    // one of the same priority ahead is such a one
}

// queueOrder orders the queue: higher priorities first; of one priority the requests for which leases are stopped; then of the tenants
// the one that used least lately, and of its users the one that used least; then first come. Each request ahead counts as use, so
// users whose use is equal alternate.
type queueOrder struct {
	users   map[member]int64
	tenants map[string]int64
	used    map[string]float64
	ahead   map[member]int
	freed   map[grantOf]bool
}

// grantOf is a user and the first grant of a request.
type grantOf struct {
	uid int
	key Key
}

// sort orders the queue. What was used is up to date.
func (s *queueOrder) sort(t *Table) {
	if len(t.queue) == 0 {
		return
	}
	s.begin(t)
	for _, k := range t.queue { // Requests of one user for one grant stay in the order in which they came.
		k.order.rank, k.order.part = k.rank(), t.view.wouldTake(&k.candidates[0])
	}
	slices.SortFunc(t.queue, func(a, b *Ticket) int {
		return cmp.Or(
			cmp.Compare(b.order.rank, a.order.rank), cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.request.UID, b.request.UID),
			cmp.Compare(a.sequence, b.sequence),
		)
	})
	for _, k := range slices.Backward(t.queue) {
		of := grantOf{k.request.UID, k.candidates[0].Key()}
		if k.preempt != nil && k.state != ticketChosen {
			s.freed[of] = true // What that frees is not for another who asks meanwhile and used less.
		}
		k.order.freed = s.freed[of]
	}
	for _, k := range t.queue {
		m := member{k.tenant, k.request.UID}
		k.order.user, k.order.userUsed = s.users[m], t.lately.used[m]
		s.users[m] += k.order.assumed()
	}
	slices.SortFunc(t.queue, func(a, b *Ticket) int {
		return cmp.Or(
			cmp.Compare(b.order.rank, a.order.rank), cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.order.user, b.order.user),
			cmp.Compare(a.sequence, b.sequence),
		)
	})
	for _, k := range t.queue {
		k.order.tenant, k.order.tenantUsed = s.tenants[k.tenant], s.used[k.tenant]
		s.tenants[k.tenant] += k.order.assumed()
	}
	slices.SortFunc(t.queue, func(a, b *Ticket) int {
		freed := 0
		if a.order.freed && !b.order.freed {
			freed = -1
		} else if b.order.freed && !a.order.freed {
			freed = 1
		}
		return cmp.Or(
			cmp.Compare(b.order.rank, a.order.rank), freed, cmp.Compare(a.order.tenant, b.order.tenant),
			cmp.Compare(a.sequence, b.sequence),
		)
	})
	s.countAhead(t)
}

// countAhead counts what is ahead of each request, for its reason.
func (s *queueOrder) countAhead(t *Table) {
	higher, freed := 0, false
	for i, k := range t.queue {
		if i > 0 && k.order.rank < t.queue[i-1].order.rank {
			higher, freed = i, false
		}
		m := member{k.tenant, k.request.UID}
		k.order.own, k.order.higher, k.order.afterFreed = s.ahead[m], higher, freed
		s.ahead[m]++
		freed = freed || k.order.freed
	}
}

// begin sets what counts for users and tenants without the requests that wait.
func (s *queueOrder) begin(t *Table) {
	if s.users == nil {
		*s = queueOrder{
			users:   map[member]int64{},
			tenants: map[string]int64{},
			used:    map[string]float64{},
			ahead:   map[member]int{},
			freed:   map[grantOf]bool{},
		}
	}
	clear(s.users)
	clear(s.tenants)
	clear(s.used)
	clear(s.ahead)
	clear(s.freed)
	for m, n := range t.lately.used {
		whole := milliseconds(n)
		s.users[m] += whole
		s.tenants[m.tenant] += whole
		s.used[m.tenant] += n
	}
	now := t.cfg.Now()
	shares := t.sharesLocked()
	for _, e := range t.leases {
		left := assumedTime
		if e.Started != nil {
			left -= now.Sub(*e.Started)
		}
		if left <= 0 {
			continue
		}
		part := t.view.partOf(&e.Terms, &e.Place) / float64(max(1, shares[sharedAt(&e.Lease)]))
		more := milliseconds(part * min(left, assumedTime).Seconds())
		s.users[member{e.Terms.Tenant, e.UID}] += more
		s.tenants[e.Terms.Tenant] += more
	}
}

// assumed is what a request counts for those behind it, in GPU-milliseconds: at least one, so that those of one user never are
// equal.
func (o *ticketOrder) assumed() int64 { return max(1, milliseconds(o.part*assumedTime.Seconds())) }

// milliseconds rounds: what differs by less is equal.
func milliseconds(seconds float64) int64 { return int64(math.Round(seconds * 1000)) }

// positionReason says what the place in the queue follows from.
func (k *Ticket) positionReason() string {
	o := &k.order
	s := fmt.Sprintf("tenant %s used %s lately, %s of it by %s (half-life %s)",
		k.tenant, GPUHours(o.tenantUsed), GPUHours(o.userUsed), k.request.userName(), api.Duration(k.t.view.halfLife()))
	if o.higher > 0 {
		s += fmt.Sprintf("; %s of a higher priority ahead", text.Count(o.higher, "request"))
	}
	if o.own > 0 {
		s += fmt.Sprintf("; %s of the same user ahead", text.Count(o.own, "request"))
	}
	if others := k.position - 1 - o.higher - o.own; others > 0 {
		s += fmt.Sprintf("; %s ahead of users who used less or asked earlier", text.Count(others, "request"))
		if o.afterFreed {
			s += ", or for whom a place is freed"
		}
	}
	return s
}

// GPUHours writes GPU-seconds as GPU-hours.
func GPUHours(seconds float64) string {
	return fmt.Sprintf("%.2f GPU-hours", seconds/time.Hour.Seconds())
}
