package status

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/gpu"
)

// OutsideUse is the processes of one user that use one GPU and are in no lease.
type OutsideUse struct {
	GPU        gpu.UUID
	User       string
	UID        int
	PIDs       []int
	Memory     *uint64 // bytes; nil: not known
	Unmeasured string  // why it is not known whether they are idle; empty: it is measured
}

// GetIdle lists who holds GPU memory, and since when it is not used.
func (v *Viewer) GetIdle(c *server.Call) error {
	return c.Reply(http.StatusOK, v.IdleFor(c.Caller))
}

// IdleFor returns what a caller may read of it.
func (v *Viewer) IdleFor(c *server.Caller) *api.Idle {
	s := v.StatusFor(c)
	out := &api.Idle{SchemaVersion: 1, At: v.Now(), Uses: []api.IdleUse{}}
	index := map[string]int{}
	total := map[string]uint64{}
	for i := range s.GPUs {
		index[s.GPUs[i].UUID], total[s.GPUs[i].UUID] = s.GPUs[i].Index, s.GPUs[i].Memory.Total
	}
	indexOf := func(id string) int {
		if n, ok := index[id]; ok {
			return n
		}
		return -1
	}
	all := v.currentStatus().status.Leases // Also those that the caller may not see have parts of a grant's memory.
	for i := range s.Leases {
		l := &s.Leases[i]
		if l.State != api.LeaseRunning {
			continue
		}
		for _, id := range l.GPUs {
			h := v.leaseUse(l, gpu.UUID(id), sharing(all, l, id), out.At)
			h.Index = indexOf(id)
			if l.Kind == api.ModeExclusive {
				h.Held = max(h.Held, total[id])
			}
			out.Uses = append(out.Uses, h)
		}
	}
	for _, u := range v.Managers.Outside() {
		if !c.ReadsAll() && u.UID != c.UID && s.Node.StatusVisible != api.StatusVisibleAll {
			continue
		}
		h := v.outsideUse(&u, out.At)
		h.Index = indexOf(string(u.GPU))
		out.Uses = append(out.Uses, h)
	}
	slices.SortStableFunc(out.Uses, compareUses)
	return out
}

// sharing is how many leases have the limit of a lease's GPU memory together: those of its grant on the GPU, or in its instance.
func sharing(all []api.Lease, l *api.Lease, id string) uint64 {
	n := uint64(0)
	for i := range all {
		o := &all[i]
		if o.Tenant == l.Tenant && o.Grant == l.Grant && o.State != api.LeaseQueued && slices.Contains(o.GPUs, id) &&
			slices.Equal(o.Devices, l.Devices) {
			n++
		}
	}
	return max(n, 1)
}

func (v *Viewer) leaseUse(l *api.Lease, on gpu.UUID, leases uint64, now time.Time) api.IdleUse {
	h := api.IdleUse{
		GPU: string(on), Lease: l.ID, Tenant: l.Tenant, Grant: l.Grant, User: l.User,
		Stop: "gpushare lease stop " + l.ID,
	}
	if l.Engine != nil {
		h.Job, h.Account = l.Engine.Key, l.Engine.Account
	}
	if r, ok := v.Samples.LeaseOn(l.ID, on); ok {
		h.Used = r.Memory
	}
	if h.Used != nil {
		h.Held = *h.Used
	}
	if l.GPUMemory != nil && l.GPUMemory.Limit > 0 {
		h.Held = max(h.Held, l.GPUMemory.Limit/leases)
	}
	idle, known := v.Managers.Account.IdleOn(l.ID, l.Generation, on)
	reason := "its use of the GPU was not measured yet"
	if l.Kind == api.ModeMIG {
		reason = cmp.Or(
			v.Managers.InstanceUse.Unmeasured(on), "its use of the MIG instance was not measured yet, or others use the instance too",
		)
	}
	setIdle(&h, idle, known, reason, now)
	return h
}

func (v *Viewer) outsideUse(u *OutsideUse, now time.Time) api.IdleUse {
	h := api.IdleUse{GPU: string(u.GPU), User: u.User, PIDs: u.PIDs, Used: u.Memory}
	if u.Memory != nil {
		h.Held = *u.Memory
	}
	idle, known := v.Managers.Account.IdleOutside(u.User, u.GPU)
	setIdle(&h, idle, known && u.Unmeasured == "", cmp.Or(u.Unmeasured, "their use of the GPU was not measured yet"), now)
	return h
}

// setIdle sets the state of a use. What was not measured is never idle.
func setIdle(h *api.IdleUse, idle time.Duration, known bool, reason string, now time.Time) {
	if !known {
		h.State, h.Reason = api.UseUnknown, reason
		return
	}
	whole := idle.Truncate(time.Second)
	h.State, h.IdleSeconds = api.UseBusy, new(whole.Seconds())
	if whole > 0 {
		h.State, h.IdleSince = api.UseIdle, new(now.Add(-whole).Truncate(time.Second))
	}
}

// compareUses orders uses: the longest idle first, then busy ones, then those of which nothing is known; of equals those that
// hold most.
func compareUses(a, b api.IdleUse) int {
	rank := map[string]int{api.UseIdle: 0, api.UseBusy: 1, api.UseUnknown: 2}
	value := func(f *float64) float64 {
		if f == nil {
			return 0
		}
		return *f
	}
	return cmp.Or(
		cmp.Compare(rank[a.State], rank[b.State]), cmp.Compare(value(b.IdleSeconds), value(a.IdleSeconds)), cmp.Compare(b.Held, a.Held),
		cmp.Compare(a.Index, b.Index), cmp.Compare(a.Lease, b.Lease), cmp.Compare(a.User, b.User),
	)
}
