package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// byQueue carries out the order of the queue.
const byQueue = "gpushared, whenever a place is free"

// explainQueued reports why a request waits, why it is where it is in the queue, and when it starts.
func explainQueued(l *api.Lease) *api.Explanation {
	e := &api.Explanation{
		SchemaVersion: 1,
		Name:          l.ID,
		Text:          fmt.Sprintf("a request of %s for grant %s of %s that waits: %s", l.User, l.Grant, l.Tenant, l.Waiting),
	}
	e.Rules = append(
		e.Rules, api.Rule{What: "position", Desired: fmt.Sprintf("%d: %s", l.Position, l.PositionReason), Enforced: true, By: byQueue},
	)
	start := api.Rule{
		What:   "expected start",
		Reason: "it is not known: " + cmp.Or(l.StartUnknown, "a lease in its way has no known end, or another request is ahead of it"),
	}
	if l.ExpectedStart != nil {
		start = api.Rule{
			What: start.What,
			Desired: "at " + l.ExpectedStart.Format(time.RFC3339) +
				", if leases run to their known ends; until then its place is lent only to leases that end before",
			Enforced: true,
			By:       byQueue,
		}
	}
	e.Rules = append(e.Rules, start)
	return e
}

// mostUsersShown is how many users of a tenant are listed with what they used.
const mostUsersShown = 5

// explainLately reports what a tenant used lately, and who most of it.
func (v *Viewer) explainLately(tenant string) api.Rule {
	var users []lease.UsedLately
	sum := 0.0
	for _, u := range v.Table.Lately().Users {
		if u.Tenant == tenant {
			users, sum = append(users, u), sum+u.GPUSeconds
		}
	}
	slices.SortStableFunc(users, func(a, b lease.UsedLately) int { return cmp.Compare(b.GPUSeconds, a.GPUSeconds) })
	s := fmt.Sprintf("it used %s lately (half-life %s)", lease.GPUHours(sum), api.Duration(v.Table.HalfLife()))
	var parts []string
	for _, u := range users[:min(len(users), mostUsersShown)] {
		parts = append(parts, v.Identities.Names.UserName(u.UID)+" "+lease.GPUHours(u.GPUSeconds))
	}
	if n := len(users) - len(parts); n > 0 {
		parts = append(parts, fmt.Sprintf("%d more", n))
	}
	if len(parts) > 0 {
		s += ": " + strings.Join(parts, ", ")
	}
	return api.Rule{
		What:     "queue",
		Desired:  s + "; of tenants of one priority the one that used least is served first",
		Enforced: true,
		By:       byQueue,
	}
}
