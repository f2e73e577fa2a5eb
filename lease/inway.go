package lease

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// What the answer to a request without a place has besides the obstacle: which leases are in its way, since when and until when at
// most, what is free instead, and which leases would be stopped for it if it waited.

// mostInWay is how many leases in its way are named.
const mostInWay = 3

// inWay lists the leases on GPUs that the request could use, those that end first at first; the last ones have no known end.
func (k *Ticket) inWayLocked() []*entry {
	var out []*entry
	for _, e := range k.t.leases {
		if slices.ContainsFunc(k.candidates, func(g Grant) bool { return k.t.blocks(e, &g) }) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *entry) int {
		x, y := k.t.knownEndLocked(a), k.t.knownEndLocked(b)
		return cmp.Or(compareBool(x.IsZero(), y.IsZero()), x.Compare(y), cmp.Compare(a.Generation, b.Generation))
	})
	return out
}

// blocks reports whether a lease is where the grant could have its place, or is one of as many as the grant may have.
func (t *Table) blocks(e *entry, g *Grant) bool {
	if most := g.MaxLeases(); most > 0 && e.Terms.Key() == g.Key() {
		return true
	}
	if g.Chosen != nil && e.Place.Instance != nil && !g.Chosen.allowsAt(*e.Place.Instance) {
		return false
	}
	return slices.ContainsFunc(t.view.GPUs, func(d GPUView) bool { return g.mayUse(&d) && slices.Contains(e.Place.GPUs, d.UUID) })
}

// placeUse describes a lease in the way, with what a reader may know of it.
func (t *Table) placeUseLocked(e *entry, seen bool) api.PlaceUse {
	u := api.PlaceUse{}
	if at := t.knownEndLocked(e); !at.IsZero() {
		u.Until = &at
	}
	if seen {
		u.Lease, u.Tenant, u.User, u.Since = e.ID, e.Terms.Tenant, e.User, e.Started
	}
	return u
}

// inUseByLocked lists the first leases in the way of a request, as each member of its tenant may read it.
func (k *Ticket) inUseByLocked() []api.PlaceUse {
	var out []api.PlaceUse
	all := k.inWayLocked()
	for _, e := range all[:min(len(all), mostInWay)] {
		out = append(out, k.t.placeUseLocked(e, k.t.view.StatusVisible || e.Terms.Tenant == k.tenant))
	}
	return out
}

// sees reports whether the user of the request may read a lease. What an engine is answered it gives to its own users, as an event of a pod
// or the output of a job: they read of others what a member of its tenant does.
func (k *Ticket) sees(e *entry) bool {
	r := &k.request
	if k.t.view.StatusVisible || e.Terms.Tenant == k.tenant {
		return true
	}
	return r.Engine == nil && (r.Admin || slices.Contains(r.Member, e.Terms.Tenant))
}

// refusalLocked is the error of a request that has no place now and does not wait.
func (k *Ticket) refusalLocked() *api.Error {
	message := fmt.Sprintf("cannot place a lease of %s now: %s", k.tenant, k.waiting)
	if k.t.view.Maintenance != "" || k.t.view.DriverUnavailable != "" {
		return &api.Error{Kind: api.KindUnavailable, Message: message, Hint: k.waitHint()}
	}
	if k.again != nil {
		hint := "use no more GPU memory than the grant has; with --wait it starts then"
		return &api.Error{Kind: api.KindUnavailable, Message: message, Hint: hint} // No other lease is in its way.
	}
	now := k.t.cfg.Now()
	all := k.inWayLocked()
	var uses []string
	for _, e := range all[:min(len(all), mostInWay)] {
		u := k.t.placeUseLocked(e, k.sees(e))
		uses = append(uses, placeUseText(&u, now))
	}
	if n := len(all) - len(uses); n > 0 {
		uses = append(uses, text.Count(n, "more lease"))
	}
	if len(uses) > 0 {
		message += "; in use by " + strings.Join(uses, ", ")
	}
	hint := k.waitHint()
	if k.request.Engine != nil {
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: message,
			Hint:    hint,
		} // What 'gpushare run' could have instead is nothing to it.
	}
	o := k.t.occupancyLocked()
	k.t.claimPendingLocked(o)
	if s := k.wouldPreemptLocked(o); s != "" {
		hint += "; " + s
	}
	if free := k.freeInsteadLocked(o); len(free) > 0 {
		hint += "; free now: " + strings.Join(free, ", ")
	}
	return &api.Error{Kind: api.KindUnavailable, Message: message, Hint: hint}
}

// placeUseText is a lease in the way in words.
func placeUseText(u *api.PlaceUse, now time.Time) string {
	out := "a lease of another tenant"
	if u.Lease != "" {
		out = fmt.Sprintf("%s of %s", u.Lease, cmp.Or(u.User, u.Tenant))
	}
	if u.Since != nil {
		out += " since " + clockText(*u.Since, now)
	}
	if u.Until != nil {
		return out + " until " + clockText(*u.Until, now) + " at the latest"
	}
	return out + " (no time limit)"
}

// clockText is a time: only the clock if it is today.
func clockText(at, now time.Time) string {
	at, now = at.Local(), now.Local()
	if at.YearDay() == now.YearDay() && at.Year() == now.Year() {
		return at.Format("15:04")
	}
	return at.Format("2006-01-02 15:04")
}

// wouldPreemptLocked says which leases would be stopped if the request waited; empty: none would.
func (k *Ticket) wouldPreemptLocked(o *occupancy) string {
	who := o.requesterOf(k)
	if k.t.view.Observing || k.request.Immediate || who.mostLeases() != "" {
		return ""
	}
	p := k.chooseVictimsLocked(o, who)
	if p == nil || stopCount(p.victims) == 0 {
		return ""
	}
	var names []string
	hidden := 0
	for _, e := range p.victims {
		switch {
		case e.State != Running:
		case k.sees(e):
			names = append(names, e.ID+" of "+cmp.Or(e.User, e.Terms.Tenant))
		default:
			hidden++
		}
	}
	if hidden > 0 {
		names = append(names, text.Count(hidden, "lease")+" of other tenants")
	}
	return "with --wait it would preempt " + strings.Join(names, ", ") + ", of a lower priority"
}

// freeInsteadLocked lists the other grants of the user that have a place now, as options of 'gpushare run'.
func (k *Ticket) freeInsteadLocked(o *occupancy) []string {
	var out []string
	who := o.requesterOf(k)
	if who.mostLeases() != "" {
		return nil
	}
	for i := range k.t.view.Grants {
		g := &k.t.view.Grants[i]
		if g.Tenant != k.tenant && !slices.Contains(k.request.Member, g.Tenant) ||
			slices.ContainsFunc(k.candidates, func(c Grant) bool { return c.Key() == g.Key() }) || len(out) == mostInWay {
			continue
		}
		if p, _ := placeFor(g, &k.t.view, o, who); p != nil {
			out = append(out, fmt.Sprintf("-t %s --grant %s (%s)", g.Tenant, g.Spec.Name, g.Kind()))
		}
	}
	return out
}

// whyNoStartLocked is why it is not known when the request starts. behind: another request waits for the same GPUs.
func (k *Ticket) whyNoStartLocked(behind bool) string {
	t := k.t
	switch {
	case t.view.Maintenance != "":
		return "the node takes no leases until the maintenance ends"
	case t.view.DriverUnavailable != "":
		return "the GPUs cannot be read now"
	case k.pending != nil:
		return "it starts when its MIG instance was created"
	case k.state == ticketChosen || k.state == ticketPreempting:
		return "it starts when the leases that are stopped for it have ended"
	case behind:
		return "another request for the same GPUs is ahead of it"
	case t.view.Observing:
		return "the node only observes: no lease is ended at its time"
	}
	all := k.inWayLocked()
	for _, e := range slices.Backward(all) {
		if t.knownEndLocked(e).IsZero() {
			if t.view.StatusVisible || e.Terms.Tenant == k.tenant {
				return fmt.Sprintf("lease %s of %s has no time limit", e.ID, cmp.Or(e.User, e.Terms.Tenant))
			}
			return "a lease of another tenant has no time limit"
		}
	}
	if len(all) == 0 {
		return "what is in its way is no lease"
	}
	return "it does not fit when the leases in its way have ended, or other requests are before it"
}
