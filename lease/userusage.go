package lease

import (
	"cmp"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// userUsage is what one user has, during one evaluation of the queue.
type userUsage struct {
	leases  int
	pending int // instances that are being created for the user's requests
	memory  uint64
	shared  map[grantOn]uint64 // the part of memory that all the user's leases of a grant on a GPU have together
}

// grantOn is a grant on one GPU, or on one shared instance.
type grantOn struct {
	Key
	gpu gpu.UUID
	at  gpu.Placement // its size is 0 for the whole GPU
}

// on is the grant on one GPU of a place.
func (p *Place) on(k Key, id gpu.UUID) grantOn {
	if p.Instance == nil {
		return grantOn{Key: k, gpu: id}
	}
	return grantOn{k, id, *p.Instance}
}

// user returns what a user has.
func (o *occupancy) user(uid int) *userUsage {
	u := o.users[uid]
	if u == nil {
		u = &userUsage{shared: map[grantOn]uint64{}}
		o.users[uid] = u
	}
	return u
}

// addUser records a lease of a user. The memory of a shared grant on a GPU is for all its leases there together, so it
// counts once for each user who has a lease of it, in full: each of them may use all of it.
func (o *occupancy) addUser(uid int, g *Grant, p *Place, v *View) {
	o.usedBy(uid, p)
	u := o.user(uid)
	u.leases++
	if g.share() == nil && p.Compute == "" {
		u.memory += placeMemory(p, v)
		return
	}
	if g.share() == nil { // Of a split instance each of its leases may use all memory.
		on := p.on(Key{}, p.GPUs[0])
		u.memory += p.Memory - min(u.shared[on], p.Memory)
		u.shared[on] = max(u.shared[on], p.Memory)
		return
	}
	for _, id := range p.GPUs {
		on := p.on(g.Key(), id)
		more := g.memory() - min(u.shared[on], g.memory())
		u.shared[on] += more
		u.memory += more
	}
}

// placeMemory returns the memory of an instance or of whole GPUs, in bytes.
func placeMemory(p *Place, v *View) (sum uint64) {
	if p.Instance != nil {
		return p.Memory
	}
	for _, id := range p.GPUs {
		if d := v.gpu(id); d != nil {
			sum += d.Capacity
		}
	}
	return sum
}

// UserUsage is what one user has.
type UserUsage struct {
	UID    int
	User   string
	Leases int
	Memory uint64 // in bytes
}

// Users returns what each user with a lease has, sorted by uid. Root is left out.
func (t *Table) Users() []UserUsage {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, names := newOccupancy(), map[int]string{}
	for _, e := range t.sortedLocked() {
		if e.UID != 0 {
			o.addUser(e.UID, &e.Terms, &e.Place, &t.view)
			names[e.UID] = e.User
		}
	}
	var out []UserUsage
	for uid, u := range o.users {
		out = append(out, UserUsage{UID: uid, User: names[uid], Leases: u.leases, Memory: u.memory})
	}
	slices.SortFunc(out, func(a, b UserUsage) int { return cmp.Compare(a.UID, b.UID) })
	return out
}
