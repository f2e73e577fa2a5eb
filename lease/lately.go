package lease

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
)

// member is one user in one tenant.
type member struct {
	tenant string
	uid    int
}

// UsedLately is what one user of one tenant used lately, in GPU-seconds: a lease of half a GPU uses one in two seconds. What
// was used counts half after each half-life. It is the time for which places were held, not the time in which kernels ran:
// what is held cannot be given to anybody else.
type UsedLately struct {
	Tenant     string  `json:"tenant"`
	UID        int     `json:"uid"`
	GPUSeconds float64 `json:"gpu_seconds"`
}

// Lately is what everybody used lately, as of one time.
type Lately struct {
	At    time.Time    `json:"at"`
	Users []UsedLately `json:"users,omitempty"` // by tenant and uid
}

const (
	// maxLately bounds how many users of tenants are kept: those that used most.
	maxLately = 2048
	// leastLately is what is forgotten, in GPU-seconds.
	leastLately = 0.01
)

// lately adds up what the members of tenants use. It has no clock: the caller says what is held, and until when.
type lately struct {
	at   time.Time
	used map[member]float64 // in GPU-seconds, at that time
}

// advance counts what is held from the last time to now: parts of GPUs, by member. A clock that goes back counts nothing.
func (u *lately) advance(now time.Time, halfLife time.Duration, held map[member]float64) {
	passed := now.Sub(u.at)
	first := u.at.IsZero()
	if !first && passed == 0 {
		return
	}
	u.at = now
	if first || passed < 0 {
		return
	}
	if u.used == nil {
		u.used = map[member]float64{}
	}
	keeps := math.Exp2(-passed.Seconds() / halfLife.Seconds())
	for m, n := range u.used {
		if n *= keeps; n < leastLately && held[m] == 0 {
			delete(u.used, m)
		} else {
			u.used[m] = n
		}
	}
	// The integral of 2^(-x/halfLife) over the time that passed: what was used at its begin counts less already.
	counts := halfLife.Seconds() / math.Ln2 * (1 - keeps)
	for m, part := range held {
		u.used[m] += part * counts
	}
	if len(u.used) > maxLately {
		u.forget()
	}
}

// forget drops those that used least.
func (u *lately) forget() {
	all := u.list().Users
	slices.SortStableFunc(all, func(a, b UsedLately) int { return cmp.Compare(b.GPUSeconds, a.GPUSeconds) })
	for _, x := range all[maxLately:] {
		delete(u.used, member{x.Tenant, x.UID})
	}
}

// list returns what is kept, in the order of tenants and users.
func (u *lately) list() Lately {
	out := Lately{At: u.at}
	for m, n := range u.used {
		out.Users = append(out.Users, UsedLately{m.tenant, m.uid, n})
	}
	slices.SortFunc(out.Users, func(a, b UsedLately) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// restore takes what list returned. A number that no use can give is left out.
func (u *lately) restore(from *Lately) {
	u.at, u.used = from.At, map[member]float64{}
	for _, x := range from.Users {
		if x.GPUSeconds >= leastLately && !math.IsInf(x.GPUSeconds, 0) { // No NaN either.
			u.used[member{x.Tenant, x.UID}] = x.GPUSeconds
		}
	}
	if len(u.used) > maxLately {
		u.forget()
	}
}

// Lately returns what everybody used lately, with what the leases that run have used up to now.
func (t *Table) Lately() Lately {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.countUseLocked()
	return t.lately.list()
}

// RestoreLately sets what was used before the node was started again. A table that knows more, from its own state, keeps that.
func (t *Table) RestoreLately(from Lately) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lately.at.IsZero() {
		t.lately.restore(&from)
	}
}

// Queued returns a request that waits.
func (t *Table) Queued(id string) (api.Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.queue {
		if k.id == id {
			return k.wireLocked(), true
		}
	}
	return api.Lease{}, false
}

// HalfLife is after how long what was used counts half in the order of the queue.
func (t *Table) HalfLife() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view.halfLife()
}

func (v *View) halfLife() time.Duration {
	return cmp.Or(v.Queue.HalfLife, time.Duration(api.DefaultHalfLife))
}

// countUseLocked brings up to date what was used. It is called before a lease starts or ends.
func (t *Table) countUseLocked() {
	now := t.cfg.Now()
	if !t.lately.at.IsZero() && now.Equal(t.lately.at) {
		return
	}
	held := map[member]float64{}
	shares := t.sharesLocked()
	for _, e := range t.leases {
		if e.Started == nil { // Its place may be occupied by another process: then it had nothing.
			continue
		}
		held[member{e.Terms.Tenant, e.UID}] += t.view.partOf(&e.Terms, &e.Place) / float64(max(1, shares[sharedAt(&e.Lease)]))
	}
	t.lately.advance(now, t.view.halfLife(), held)
}

// partLocked is how much of each of its GPUs a lease keeps from others, 0…1; ok is false before it has started.
func (t *Table) partLocked(l *Lease, shares map[grantOn]int) (part float64, ok bool) {
	if l.Started == nil || len(l.Place.GPUs) == 0 {
		return 0, false
	}
	return t.view.partOf(&l.Terms, &l.Place) / float64(max(1, shares[sharedAt(l)])) / float64(len(l.Place.GPUs)), true
}

// PartKey names a lease.
type PartKey struct {
	ID         string
	Generation uint64
}

// Parts returns how much of each of its GPUs each lease that has started keeps from others, 0…1: what it has alone, and an equal part
// of what it has together with the other leases of its grant.
func (t *Table) Parts() map[PartKey]float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out, shares := make(map[PartKey]float64, len(t.leases)), t.sharesLocked()
	for _, e := range t.leases {
		if part, ok := t.partLocked(&e.Lease, shares); ok {
			out[PartKey{e.ID, e.Generation}] = part
		}
	}
	return out
}

// sharesLocked counts the leases that have a share together.
func (t *Table) sharesLocked() map[grantOn]int {
	n := map[grantOn]int{}
	for _, e := range t.leases {
		if on := sharedAt(&e.Lease); on != (grantOn{}) {
			n[on]++
		}
	}
	return n
}

// sharedAt is what a lease has together with the other leases of its grant; zero: it has its place alone.
func sharedAt(l *Lease) grantOn {
	if l.Terms.share() == nil || len(l.Place.GPUs) != 1 {
		return grantOn{}
	}
	return l.Place.on(l.Terms.Key(), l.Place.GPUs[0])
}

// partOf is how much of a GPU a place keeps from others: the larger one of its part of the time or threads and its part of the
// memory, and of several GPUs their number.
func (v *View) partOf(g *Grant, p *Place) float64 {
	if len(p.GPUs) == 0 {
		return 0
	}
	d := v.gpu(p.GPUs[0])
	switch {
	case g.Kind() == api.ModeExclusive:
		return float64(len(p.GPUs))
	case d == nil || d.Capacity == 0:
		return cmp.Or(g.percent()/fullShare, 1)
	case g.share() == nil:
		return partOfMemory(p.Memory, d.Capacity) * p.fraction()
	}
	if in := d.divisibleAt(p); in != nil && in.instance != nil {
		return partOfMemory(in.instance.Memory, d.Capacity) * g.partOfShare(in.instance.Memory)
	}
	return g.partOfShare(d.Capacity)
}

// partOfShare is the larger one of the grant's share and of its memory as part of the whole.
func (g *Grant) partOfShare(whole uint64) float64 {
	return min(1, max(g.percent()/fullShare, partOfMemory(g.memory(), whole)))
}

func partOfMemory(n, whole uint64) float64 {
	if whole == 0 {
		return 1
	}
	return min(1, float64(n)/float64(whole))
}

// wouldTake is how much of a GPU a lease of the grant would have: what partOf says of its place later, as far as that is known.
func (v *View) wouldTake(g *Grant) float64 {
	if g.Kind() == api.ModeExclusive {
		return float64(g.Spec.Exclusive)
	}
	best, of := instancePart{}, uint64(0)
	for i := range v.GPUs {
		d := &v.GPUs[i]
		if !g.mayUse(d) || d.Capacity == 0 {
			continue
		}
		if g.Kind() != api.ModeMIG && !g.Spec.InInstance() {
			return g.partOfShare(d.Capacity)
		}
		if p := g.instancePart(d); p.before(best) {
			best, of = p, d.Capacity
		}
	}
	switch {
	case best == instancePart{}:
		return 1
	case g.share() == nil:
		return partOfMemory(best.memory, of) * best.fraction
	}
	return partOfMemory(best.memory, of) * g.partOfShare(best.memory)
}

// instancePart is what a lease gets of an instance: of one that is split, a fraction of its compute. The zero value is nothing.
type instancePart struct {
	memory   uint64 // of the instance
	fraction float64
}

// before reports whether a lease gets p rather than q: a whole instance before a part of one, then the smaller instance, then the
// larger part.
func (p instancePart) before(q instancePart) bool {
	switch {
	case p.fraction == 0 || q.fraction == 0:
		return p.fraction != 0
	case (p.fraction < 1) != (q.fraction < 1):
		return p.fraction == 1
	case p.memory != q.memory:
		return p.memory < q.memory
	}
	return p.fraction > q.fraction
}

// instancePart is what a lease of the grant gets of the instances of a GPU, of those that exist and of those that may be created.
func (g *Grant) instancePart(d *GPUView) (best instancePart) {
	consider := func(p *ProfileView) {
		if at := (instancePart{p.Memory, fractionOf(cmp.Or(p.Split, p.Name))}); g.matches(p) && at.before(best) {
			best = at
		}
	}
	for i := range d.Profiles {
		consider(&d.Profiles[i])
	}
	for i := range d.Instances {
		for p := range d.Instances[i].parts() {
			consider(&p.ProfileView)
		}
	}
	return best
}
