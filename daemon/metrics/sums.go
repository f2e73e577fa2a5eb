package metrics

import (
	"time"

	"github.com/gpushare/gpushare/api"
)

// Lease ids are on no metric but lease_info, because each lease would begin new series. The others add up the leases of a grant.

type shareKey struct{ gpu, device, tenant, grant string }

// shareSum adds up shares in percent. One that no lease has is nil.
type shareSum struct {
	entitled             float64
	due, busy, occupancy *float64
	enforced             bool  // every one
	met                  *bool // every one has its share; nil: of one of them it was not measured
	leases               int
}

func (s *shareSum) add(l *api.LeaseShare) {
	s.entitled += l.Entitled
	s.due = plus(s.due, l.Due) // A lease without work is due nothing.
	s.busy, s.occupancy = s.known(s.busy, l.Busy), s.known(s.occupancy, l.Occupancy)
	s.enforced = s.enforced && l.Enforced
	s.addState(l.State)
}

// known adds to a sum that is unknown if a part of it is.
func (s *shareSum) known(sum, value *float64) *float64 {
	if value == nil || sum == nil && s.leases > 0 {
		return nil
	}
	return plus(sum, value)
}

// addState adds whether a lease has its share. One that has not decides; one of which that is not known leaves it open.
func (s *shareSum) addState(state string) {
	first := s.leases == 0
	s.leases++
	switch {
	case state == api.ShareUnmet:
		s.met = new(false)
	case s.met != nil && !*s.met:
	case state != api.ShareMet && state != api.ShareLess:
		s.met = nil
	case first:
		s.met = new(true)
	}
}

// plus adds what is known.
func plus(sum, value *float64) *float64 {
	if value == nil {
		return sum
	}
	out := *value
	if sum != nil {
		out += *sum
	}
	return &out
}

type grantKey struct{ tenant, grant string }

type backendKey struct {
	name string
	hard bool
}

type grantSum struct {
	live, notIsolated, frozen int
	oldest                    *time.Time // of those that wait
	used, limit               uint64
	measured, unknown         bool // the memory of one of them is known, or is not
	backends                  map[backendKey]int
}

func (s *grantSum) add(l *api.Lease) {
	if l.State == api.LeaseQueued {
		if s.oldest == nil || l.Created.Before(*s.oldest) {
			s.oldest = &l.Created
		}
		return
	}
	s.live++
	if len(l.Isolation.NotEnforced) > 0 {
		s.notIsolated++
	}
	if len(l.FrozenFor) > 0 {
		s.frozen++
	}
	if m := l.GPUMemory; m != nil {
		s.measured, s.unknown = true, s.unknown || m.Unknown
		s.used += m.Used
		s.limit = max(s.limit, m.Limit)
		s.backends[backendKey{m.Backend, m.Hard}]++
	}
}
