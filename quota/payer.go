package quota

import (
	"slices"
	"time"
)

// What a lease used too much, and what was learned of it, belongs to its payer. The next lease of the payer goes on with it: otherwise
// short leases would have no debt, and each its trial.

const (
	// payerKept is how long it is kept while the payer has no lease here.
	payerKept = 10 * time.Minute
	// mostKept is how many ended leases are kept so. Of the payer with the most of them the first is dropped: no payer's leases end what
	// another one owes.
	mostKept = 64
)

// payer is what is kept of a lease that has ended.
type payer struct {
	name string
	at   time.Duration // when it ended
	was  *member
}

// Payers are what is kept of the leases of a GPU that has none now.
type Payers struct{ list []payer }

// leave keeps what the payer of a lease owes that has ended.
func (s *Scheduler) leave(m *member) {
	if m.Payer == "" {
		return
	}
	if m.running && (s.phase == sliceRuns || s.phase == sliceCloses) {
		m.deficit -= m.own.charge(s.last-s.start) + m.backlog.mean // Its slice ends with it, and is owed.
	}
	s.left.list = slices.DeleteFunc(s.left.list, func(p payer) bool { return s.last >= p.at+payerKept })
	s.left.list = append(s.left.list, payer{m.Payer, s.last, m})
	if len(s.left.list) > mostKept {
		s.left.dropOne()
	}
}

// dropOne drops the first of the payer that has most.
func (x *Payers) dropOne() {
	count, most := map[string]int{}, ""
	for i := range x.list {
		name := x.list[i].name
		if count[name]++; count[name] > count[most] {
			most = name
		}
	}
	i := slices.IndexFunc(x.list, func(p payer) bool { return p.name == most })
	x.list = slices.Delete(x.list, i, i+1)
}

// Leave ends the scheduler and returns what payers owe, for Continue of another one whose times begin at the same moment. The caller
// thaws the leases.
func (s *Scheduler) Leave(now time.Duration) Payers {
	s.account(now)
	for _, m := range s.members {
		s.leave(m)
	}
	left := s.left
	*s = *NewScheduler(s.cfg)
	s.last = now
	return left
}

// Continue gives a scheduler that has no lease yet what payers owed.
func (s *Scheduler) Continue(left Payers) { s.left = left }

// joins returns the state of a lease that is new here: of its payer the lease that ended and owes most, or what is known of one that is
// still here.
func (s *Scheduler) joins(x Member) *member {
	m := &member{Member: x, joined: s.last, own: ownIdle{since: s.last}, demand: newDemand(&x, s.last)}
	if x.Payer == "" {
		return m
	}
	// One that is thawed yet has not left.
	for _, other := range s.members {
		if other.removed && other.Payer == x.Payer {
			s.leave(other)
			other.Payer = ""
		}
	}
	best := -1
	for i := range s.left.list {
		p := &s.left.list[i]
		if p.name == x.Payer && s.last < p.at+payerKept && (best < 0 || p.was.owesMore(s.left.list[best].was)) {
			best = i
		}
	}
	if best >= 0 {
		p := s.left.list[best]
		s.left.list = slices.Delete(s.left.list, best, best+1)
		m.continues(p.was, s.last-p.at)
		if m.demand.class == measured && m.demand.trials >= unansweredTrials {
			m.demand.class = s.unmeasured(m) // Leases that ended before their trials showed something do not get more of them.
		}
		return m
	}
	for _, other := range s.members {
		if other.Payer == x.Payer && other.demand.class == heavy && m.demand.class == measured {
			m.demand.class = heavy
		}
	}
	return m
}

// owesMore orders leases that have ended: one that keeps the GPU busy before others, then the one with the greater debt.
func (m *member) owesMore(other *member) bool {
	if a, b := m.demand.class == heavy, other.demand.class == heavy; a != b {
		return a
	}
	return m.deficit < other.deficit
}

// continues takes over what a lease owed and what was learned of it. While none ran its debt became less by its share.
func (m *member) continues(was *member, away time.Duration) {
	m.deficit = min(0, was.deficit+time.Duration(was.weight*float64(away)))
	m.budget, m.comes = was.budget, true
	m.demand, m.backlog = was.demand, was.backlog
	m.demand.rows = slices.Clone(was.demand.rows)
	m.own.parts, m.own.n, m.own.rest = was.own.parts, was.own.n, was.own.rest
	// These are of counters that begin again.
	m.demand.seen, m.demand.occupied, m.backlog.charged = 0, 0, 0
}
