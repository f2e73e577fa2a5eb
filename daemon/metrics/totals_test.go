package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/usage"
)

func everyTenant(string) bool { return true }

func interval(user string, busy, occupancy time.Duration) *usage.Interval {
	i := &usage.Interval{Subject: usage.Subject{Tenant: "vision", User: user, GPU: "GPU-0"}}
	if busy >= 0 {
		i.Busy = &usage.Busy{Time: busy}
	}
	if occupancy >= 0 {
		i.Occupancy = &occupancy
	}
	return i
}

func TestTotals(t *testing.T) {
	var s Totals
	s.Record(interval("alice", time.Second, -1))
	s.Record(interval("alice", 2*time.Second, -1))
	got := s.list(everyTenant)
	s.Record(interval("alice", time.Second, 0))
	if len(got) != 1 || *got[0].Busy != 3*time.Second || got[0].Occupancy != nil {
		t.Errorf("they are %+v", got)
	}
	if got = s.list(everyTenant); *got[0].Busy != 4*time.Second || *got[0].Occupancy != 0 {
		t.Errorf("then they are %+v", got)
	}
	if got := s.list(func(tenant string) bool { return tenant == "speech" }); len(got) > 0 {
		t.Errorf("another tenant sees %+v", got)
	}
}

func TestTotalsAreBounded(t *testing.T) {
	var s Totals
	for n := range mostTotals + 100 {
		s.Record(interval(fmt.Sprint(n), time.Second, -1))
	}
	all := s.list(everyTenant)
	var sum time.Duration
	for _, u := range all {
		sum += *u.Busy
	}
	if len(all) != mostTotals+1 || sum != (mostTotals+100)*time.Second {
		t.Errorf("%d users have %s", len(all), sum)
	}
}
