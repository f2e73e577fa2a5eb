package lease

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/owed"
)

// PerUser limits what one user may have at once, over all tenants and grants. 0 is no limit. It is checked when a lease
// gets its place, never afterwards. Root has no limit: root is no user of a tenant.
type PerUser struct {
	Leases int
	Memory uint64 // of the grants that the user has leases of, in bytes
}

// requester is whom a place is searched for. The zero value has no user.
type requester struct {
	ticket  string         // it may have the instance that was created for it
	uid     *int           // of the user; nil for no user
	name    string         // of the user
	owed    *owed.Accounts // what they owe; nil: they wait for nothing that they owe
	now     time.Time      // with owed
	limit   PerUser        // of the user; zero for root
	has     *userUsage     // what the user has; nil without a limit
	inPlace bool           // the processes of its lease are not started by gpushare
	own     int            // of has.pending: for this ticket
	amounts Own            // what its lease would have of its grant for itself
	coming  *coming        // the grants of a spec that is being accepted; nil: none is
	ends    time.Time      // when its lease would end at the latest; zero: that is not known
}

// requesterOf describes the user of a request.
func (o *occupancy) requesterOf(k *Ticket) requester {
	// The processes of a job of an engine come later: what uses the place now is not the job.
	r := requester{
		ticket: k.id, uid: &k.request.UID, inPlace: k.lease.InPlace() && k.lease.Engine == nil, amounts: k.request.Own,
		coming: k.t.coming,
	}
	r.name = k.request.userName()
	if k.request.Engine == nil {
		r.owed, r.now = &k.t.owed, k.t.cfg.Now()
	}
	if r.limit = k.request.limit(&k.t.view); r.limit != (PerUser{}) {
		r.has = o.user(k.request.UID)
		if k.pending != nil {
			r.own = 1
		}
	}
	return r
}

// limit returns the limit of the user of a request.
func (r *Request) limit(v *View) PerUser {
	if r.UID == 0 {
		return PerUser{}
	}
	return v.PerUser
}

func (r *Request) userName() string { return cmp.Or(r.User, "uid "+strconv.Itoa(r.UID)) }

// mostLeases returns why the user may have no further lease now; empty if they may.
func (r *requester) mostLeases() string {
	if r.limit.Leases == 0 || r.has.leases+r.has.pending-r.own < r.limit.Leases {
		return ""
	}
	s := fmt.Sprintf("%s has %d of %d leases (per_user.leases)", r.name, r.has.leases, r.limit.Leases)
	if n := r.has.pending - r.own; n > 0 {
		s = fmt.Sprintf(
			"%s has %d of %d leases, and instances are being created for %d more (per_user.leases)", r.name, r.has.leases,
			r.limit.Leases, n,
		)
	}
	return s
}

// left returns how much more memory the user may have, in bytes.
func (r *requester) left() uint64 {
	if r.limit.Memory == 0 {
		return math.MaxUint64
	}
	return r.limit.Memory - min(r.has.memory, r.limit.Memory)
}

// more returns how much memory a lease of a shared grant at a place adds to what the user has.
func (r *requester) more(g *Grant, p *Place) uint64 {
	if r.has == nil {
		return 0
	}
	return g.memory() - min(r.has.shared[p.on(g.Key(), p.GPUs[0])], g.memory())
}

// moreIn returns how much memory a part of an instance adds to what the user has.
func (r *requester) moreIn(id gpu.UUID, in *InstanceView, p *part) uint64 {
	if r.has == nil || p.device == "" {
		return in.Memory
	}
	return in.Memory - min(r.has.shared[grantOn{Key{}, id, in.Placement}], in.Memory)
}

// tooMuch is the obstacle of a lease that would add this memory. Nothing is claimed: other users do not wait for it.
func (r *requester) tooMuch(more uint64) *obstacle {
	return &obstacle{text: fmt.Sprintf("%s has %s of %s of GPU memory, and this needs %s more (per_user.gpu_memory)",
		r.name, api.Bytes(r.has.memory).Short(), api.Bytes(r.limit.Memory).Short(), api.Bytes(more).Short())}
}

// exceedsPerUser returns why a user can never have a lease of the grant, nil if they can.
func (r *Request) exceedsPerUser(g *Grant, v *View) *api.Error {
	limit := r.limit(v).Memory
	if limit == 0 || v.DriverUnavailable != "" {
		return nil
	}
	var sizes []uint64
	for i := range v.GPUs {
		d := &v.GPUs[i]
		if !g.mayUse(d) {
			continue
		}
		switch g.Kind() {
		case api.ModeMIG:
			for j := range d.Profiles {
				if g.matches(&d.Profiles[j]) {
					sizes = append(sizes, d.Profiles[j].Memory)
				}
			}
			for j := range d.Instances {
				if g.satisfies(&d.Instances[j]) {
					sizes = append(sizes, d.Instances[j].Memory)
				}
			}
		case api.ModeExclusive:
			sizes = append(sizes, d.Capacity)
		default:
			sizes = append(sizes, g.memory())
		}
	}
	slices.Sort(sizes)
	var need uint64
	for _, n := range sizes[:min(max(g.Spec.Exclusive, 1), len(sizes))] {
		need += n
	}
	if need <= limit {
		return nil
	}
	return &api.Error{
		Kind: api.KindInfeasible,
		Hint: "ask the administrator for a smaller grant",
		Message: fmt.Sprintf(
			"cannot ever place grant %s of %s for %s: it needs %s of GPU memory, and a user may have %s (per_user.gpu_memory)",
			g.Spec.Name, g.Tenant, r.userName(), api.Bytes(need).Short(), api.Bytes(limit).Short(),
		),
	}
}

// PerUser returns the limits of each user.
func (t *Table) PerUser() PerUser {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view.PerUser
}
