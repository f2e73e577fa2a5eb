package report

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
)

// mostRecent is how many events are kept: at most 2 MiB.
const mostRecent = 1024

// recent keeps the newest events. When it is full, the tenant with the most of them loses its oldest: one whose events are many does
// not push out those of others. Events of the node count as those of a tenant without a name. The zero value works.
type recent struct {
	list     []*api.Event // the oldest first; none is changed
	ofTenant map[string]int
}

func (r *recent) add(e *api.Event) {
	if r.ofTenant == nil {
		r.ofTenant = map[string]int{}
	}
	if len(r.list) == mostRecent {
		most := e.Tenant
		for tenant, n := range r.ofTenant {
			if n > r.ofTenant[most] || n == r.ofTenant[most] && tenant > most {
				most = tenant
			}
		}
		i := slices.IndexFunc(r.list, func(old *api.Event) bool { return old.Tenant == most })
		r.list = slices.Delete(r.list, i, i+1)
		if r.ofTenant[most]--; r.ofTenant[most] == 0 {
			delete(r.ofTenant, most)
		}
	}
	r.list = append(r.list, e)
	r.ofTenant[e.Tenant]++
}

// Recent returns the events that are kept and sees returns true for, from since until until, the oldest first. A zero time is no
// limit. sees is called with a lock, and decides by its argument alone.
func (b *broker) Recent(sees func(*api.Event) bool, since, until time.Time) (found []*api.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.recent.list {
		if sees(e) && !e.At.Before(since) && (until.IsZero() || e.At.Before(until)) {
			found = append(found, e)
		}
	}
	return found
}
