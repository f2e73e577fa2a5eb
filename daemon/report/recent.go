package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
)

// mostRecent is how many events are kept: at most 2 MiB.
const mostRecent = 1024

// recent keeps the newest events. When it is full, the source with the most of them loses its oldest: one whose events are many
// does not push out those of others. The zero value works.
type recent struct {
	list     []*api.Event // the oldest first; none is changed
	ofSource map[source]int
}

// source is what an event is counted to. Starts and ends of leases are a source of their own: a user may have a thousand short
// leases, which must not push out why a GPU was closed or an XID of the same user. Events of the node are those of a tenant
// without a name.
type source struct {
	tenant, user string
	life         bool
}

func sourceOf(e *api.Event) source {
	return source{e.Tenant, e.User, strings.HasPrefix(e.Kind, "lease.")}
}

// more orders sources with the same number of events.
func (s source) more(other source) bool {
	return cmp.Or(strings.Compare(s.tenant, other.tenant), strings.Compare(s.user, other.user)) > 0 ||
		s.tenant == other.tenant && s.user == other.user && s.life
}

func (r *recent) add(e *api.Event) {
	if r.ofSource == nil {
		r.ofSource = map[source]int{}
	}
	if len(r.list) == mostRecent {
		most := sourceOf(e)
		for s, n := range r.ofSource {
			if n > r.ofSource[most] || n == r.ofSource[most] && s.more(most) {
				most = s
			}
		}
		i := slices.IndexFunc(r.list, func(old *api.Event) bool { return sourceOf(old) == most })
		r.list = slices.Delete(r.list, i, i+1)
		if r.ofSource[most]--; r.ofSource[most] == 0 {
			delete(r.ofSource, most)
		}
	}
	r.list = append(r.list, e)
	r.ofSource[sourceOf(e)]++
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
