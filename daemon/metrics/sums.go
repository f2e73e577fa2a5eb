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
	enforced             bool // every one
}

func (s *shareSum) add(l *api.LeaseShare) {
	s.entitled += l.Entitled
	s.due, s.busy, s.occupancy = plus(s.due, l.Due), plus(s.busy, l.Busy), plus(s.occupancy, l.Occupancy)
	s.enforced = s.enforced && l.Enforced
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
